# Stand-ins for the images of others where these cannot be pulled (tests/harness/compose.py): programs of Debian, and
# Apache Kafka from Maven, with the users, folders and commands of the images. They prove what is Leadview's: its
# Dockerfile, users, volumes, health checks, networks, and the order of start and stop.
ARG DEBIAN=leadview-stand-in:debian

FROM ${DEBIAN} AS debian
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive

FROM debian AS python
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends python-is-python3 python3-pip python3-venv \
    && rm --force /usr/lib/python3*/EXTERNALLY-MANAGED

FROM debian AS redis
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends redis-server \
    && install --directory --owner=redis --group=redis /data \
    # The image is built without the protected mode.
    && printf '#!/bin/sh\nexec /usr/bin/redis-server "$@" --protected-mode no\n' > /usr/local/bin/redis-server \
    && chmod 755 /usr/local/bin/redis-server
WORKDIR /data

FROM debian AS caddy
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends caddy curl \
    && install --directory --mode=1777 /data /config
ENV XDG_DATA_HOME=/data XDG_CONFIG_HOME=/config
CMD ["caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]

FROM debian AS kafka
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends default-jre-headless \
    && useradd --uid 1000 appuser \
    && install --directory --owner=appuser /etc/kafka/secrets /mnt/shared/config /var/lib/kafka/data \
    && install --directory --mode=1777 /opt/kafka/config /opt/kafka/logs
# runc before 1.1.8 (Debian 12) gives a tmpfs the mode of the folder, whatever compose.yaml says.
# The context is the folder of the jars.
COPY *.jar /opt/kafka/libs/
# As in the image, Kafka's own wrapper turns the environment into the configuration, and formats the storage.
RUN mkdir -p /opt/kafka/bin /etc/kafka/docker && cd /etc/kafka/docker \
    && touch server.properties log4j2.yaml tools-log4j2.yaml \
    && for tool in kafka-topics=org.apache.kafka.tools.TopicCommand \
        kafka-broker-api-versions=org.apache.kafka.tools.BrokerApiVersionsCommand; do \
        printf '#!/bin/sh\nexec java $KAFKA_HEAP_OPTS -cp "/opt/kafka/libs/*" %s "$@"\n' "${tool#*=}" \
            > "/opt/kafka/bin/${tool%=*}.sh"; \
    done \
    && printf '%s\n' '#!/bin/sh' \
        'said=$(java -cp "/opt/kafka/libs/*" kafka.docker.KafkaDockerWrapper setup \' \
        '    --default-configs-dir /etc/kafka/docker --mounted-configs-dir /mnt/shared/config \' \
        '    --final-configs-dir /opt/kafka/config 2>&1) || echo "$said" | grep -i "already formatted" || {' \
        '    echo "$said"; exit 1; }' \
        'exec java $KAFKA_HEAP_OPTS -cp "/opt/kafka/libs/*" kafka.Kafka /opt/kafka/config/server.properties' \
        > /etc/kafka/docker/run \
    && chmod 755 /opt/kafka/bin/*.sh /etc/kafka/docker/run
VOLUME ["/etc/kafka/secrets", "/mnt/shared/config", "/var/lib/kafka/data"]
USER appuser
CMD ["/etc/kafka/docker/run"]
