# The gateway in a container: docs/how-to/run-as-a-service.md. Put no secret into the image. Secrets are in .env in the home,
# which is the volume. Other extras: docker build --build-arg EXTRAS=telegram,honcho . installs them without a lock file.
# A fixed base image: docker build --build-arg BASE=python:3.13-slim@sha256:… .
ARG BASE=python:3.13-slim
FROM ${BASE} AS build
ARG EXTRAS=telegram,discord,slack,matrix
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY locks ./locks
RUN python -m venv /opt/build && /opt/build/bin/pip install --require-hashes -r locks/build.txt
RUN python -m venv /opt/everhold && if [ "$EXTRAS" = telegram,discord,slack,matrix ]; \
    then /opt/everhold/bin/pip install --require-hashes -r locks/image.txt; fi
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/build/bin/python -m hatchling build -t wheel -d /dist && if [ "$EXTRAS" = telegram,discord,slack,matrix ]; \
    then /opt/everhold/bin/pip install --no-deps /dist/*.whl; \
    else /opt/everhold/bin/pip install "$(echo /dist/*.whl)[$EXTRAS]"; fi

FROM ${BASE}
# Keep this number, because the owner of a bind mount must have it.
RUN useradd --uid 10001 --create-home everhold && install -d -o everhold -g everhold -m 700 /data
COPY --from=build /opt/everhold /opt/everhold
ENV PATH=/opt/everhold/bin:$PATH EVERHOLD_HOME=/data PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1
USER everhold
VOLUME /data
EXPOSE 8765
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=10m \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8765, timeout=5); c.request('GET', '/ready'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["everhold"]
CMD ["up", "--port", "8765"]
