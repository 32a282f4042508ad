// Uses the client that openapi-generator makes with its default library (okhttp-gson), and prints what came.

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.openapitools.client.ApiClient;
import org.openapitools.client.ApiException;
import org.openapitools.client.ApiResponse;
import org.openapitools.client.api.ContactsApi;
import org.openapitools.client.api.LeadsApi;
import org.openapitools.client.model.Contact;
import org.openapitools.client.model.ErrorBody;
import org.openapitools.client.model.Lead;
import org.openapitools.client.model.RateLimitError;
import org.openapitools.client.model.RetryableError;

public class UseClient {
    static final Gson JSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();

    record Order(String url, String away, String newer, String key, String disabled, String limited, String lead,
            String contact) {
    }

    record Answer(int status, String tag, List<?> shown, ApiException refusal) {
    }

    interface Request<T> {
        ApiResponse<T> send() throws ApiException;
    }

    interface View<T> {
        List<?> of(T document);
    }

    /** Returns what came: the client throws if the status is not 200, also for 304. */
    static <T> Answer answer(Request<T> request, View<T> view) {
        try {
            ApiResponse<T> response = request.send();
            return new Answer(response.getStatusCode(), response.getHeaders().get("ETag").get(0),
                    view.of(response.getData()), null);
        } catch (ApiException refusal) {
            if (refusal.getCode() == 0) {
                throw new IllegalStateException(refusal);
            }
            return new Answer(refusal.getCode(), null, List.of(), refusal);
        }
    }

    static ApiClient client(String base, String key) {
        ApiClient client = new ApiClient().setBasePath(base);
        if (key != null) {
            client.setBearerToken(key);
        }
        return client;
    }

    static Answer lead(String base, String key, String id, String tag) {
        LeadsApi leads = new LeadsApi(client(base, key));
        return answer(() -> leads.getLeadWithHttpInfo(UUID.fromString(id), tag, null, null), UseClient::show);
    }

    static Answer lead(String base, String key, String id) {
        return lead(base, key, id, null);
    }

    static Answer contact(String base, String key, String id) {
        ContactsApi contacts = new ContactsApi(client(base, key));
        return answer(() -> contacts.getContactWithHttpInfo(UUID.fromString(id), null, null, null), UseClient::show);
    }

    static List<?> show(Lead lead) {
        Map<String, Object> source = (Map<String, Object>) lead.getSource();
        return List.of(lead.getStage(), lead.getEvents().get(0).getEventTimezone(), lead.getQuoteTotal(),
                lead.getNotesCount(), source.get("utm_source"));
    }

    static List<?> show(Contact contact) {
        Map<String, Object> fields = new HashMap<>();
        contact.getCustomFields().forEach((name, value) -> fields.put(name,
                value == null ? null : value.getActualInstance()));
        return List.of(fields);
    }

    static void print(String name, int status, List<?> values) {
        List<Object> line = new ArrayList<>(List.of(name, status));
        line.addAll(values);
        System.out.println(JSON.toJson(line));
    }

    static void refused(String name, Answer answer) throws Exception {
        print(name, answer.status(), List.of(ErrorBody.fromJson(answer.refusal().getResponseBody()).getError()));
    }

    public static void main(String[] arguments) throws Exception {
        Order order = JSON.fromJson(arguments[0], Order.class);
        Answer first = lead(order.url(), order.key(), order.lead());
        print("200", first.status(), first.shown());
        print("304", lead(order.url(), order.key(), order.lead(), first.tag()).status(), List.of());
        Answer contact = contact(order.url(), order.key(), order.contact());
        print("contact", contact.status(), contact.shown());
        refused("404", lead(order.url(), order.key(), order.contact()));
        refused("401", lead(order.url(), null, order.lead()));
        refused("403", lead(order.url(), order.disabled(), order.lead()));

        Answer limited = lead(order.url(), order.limited(), order.lead());
        while (limited.status() != 429) {
            limited = lead(order.url(), order.limited(), order.lead());
        }
        RateLimitError limit = RateLimitError.fromJson(limited.refusal().getResponseBody());
        print("429", limited.status(), List.of(limit.getError(), limit.getViolatedPolicies()));
        Thread.sleep(limit.getRetryAfter() * 1000);
        print("retry", lead(order.url(), order.limited(), order.lead()).status(), List.of());

        Answer away = lead(order.away(), order.key(), order.lead());
        RetryableError outage = RetryableError.fromJson(away.refusal().getResponseBody());
        print("503", away.status(), List.of(outage.getError(), outage.getRetryAfter() > 0));

        Answer newer = lead(order.newer(), order.key(), order.lead());
        print("newer", newer.status(), newer.shown());
        newer = contact(order.newer(), order.key(), order.contact());
        print("newer contact", newer.status(), newer.shown());
        refused("newer error", lead(order.newer(), order.key(), order.contact()));
        System.exit(0); // the connections of the client stay open for minutes
    }
}
