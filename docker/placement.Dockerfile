# The placement service: numpy, onnxruntime and a web server; no torch, no Airflow, no DVC, no numba, no gymnasium.
#
#   docker build -f docker/placement.Dockerfile -t loadmaster-placement .
#   docker build -f docker/placement.Dockerfile --build-arg RELEASE=1 --build-arg BASE=python:3.13-slim-bookworm@sha256:... .
#
# BASE must have Python 3.11-3.13 with venv. A release names it by the digest that was pulled and tested, so that the same
# commit gives the same image; RELEASE=1 refuses any other. REQUIREMENTS=serve-sim adds the kernels, which only the
# controller of the computing power network (CPN) runs. docker/lock.sh writes the lists.
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
ARG BASE
ARG RELEASE=0
ARG REQUIREMENTS=serve
WORKDIR /src
COPY docker/check-base.sh docker/
RUN sh docker/check-base.sh "${RELEASE}" "${BASE}"
RUN python3 -m venv /opt/loadmaster && python3 -m venv /opt/build
# Dependencies first: they change less often than the code, and their layer is then reused. Hashes of all of them, and of
# what builds ours: nothing gets in that was not there when the list was made.
COPY docker/requirements-${REQUIREMENTS}.txt docker/requirements-build.txt docker/
RUN /opt/loadmaster/bin/pip install --no-cache-dir --no-deps --require-hashes -r docker/requirements-${REQUIREMENTS}.txt \
    && /opt/build/bin/pip install --no-cache-dir --no-deps --require-hashes -r docker/requirements-build.txt
# Only what the service is made of: the pipeline has no business here.
COPY pyproject.toml README.md LICENSE ./
COPY wire wire
COPY sched_env sched_env
COPY placement placement
COPY docker/sbom.py docker/
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --no-index --wheel-dir /src/wheels . \
    && /opt/loadmaster/bin/pip install --no-cache-dir --no-deps --no-index /src/wheels/*.whl

FROM ${BASE}
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin loadmaster \
    && install -d -o 10001 -g 10001 -m 0750 /var/lib/loadmaster
COPY --from=build /opt/loadmaster /opt/loadmaster
COPY --from=build /src/docker/sbom.py /tmp/sbom.py
RUN /opt/loadmaster/bin/python /tmp/sbom.py loadmaster-placement /usr/share/sbom/loadmaster-placement.cdx.json && rm /tmp/sbom.py
ENV LOADMASTER_VAR=/var/lib/loadmaster \
    OMP_NUM_THREADS=1 \
    ORT_DISABLE_TELEMETRY=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
VOLUME /var/lib/loadmaster
EXPOSE 8100
# Kubernetes has its own probes; this one is for docker run and compose.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["/opt/loadmaster/bin/python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8100/healthz', timeout=2)"]
ENTRYPOINT ["/opt/loadmaster/bin/python", "-m", "placement"]
# Inside a container the network policy decides who gets in, not the address.
CMD ["--host", "0.0.0.0", "--port", "8100"]
