// Compiles if the client was made as docs/reading.md says for money without rounding.

import java.math.BigDecimal;
import org.openapitools.client.model.Lead;

class Exact {
    static BigDecimal total(Lead lead) {
        return lead.getQuoteTotal();
    }
}
