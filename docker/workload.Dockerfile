# What benchmark Jobs and the demo's jobs run: docker/workload.py and torch, with random weights; no data, no network.
#
#   docker build -f docker/workload.Dockerfile -t loadmaster-workload .
#
# BASE and RELEASE as in placement.Dockerfile. torch brings its own CUDA libraries (3 GB): the node needs the driver alone,
# and without a GPU the same image runs on the CPU. docker/lock.sh writes the list.
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE}
ARG BASE
ARG RELEASE=0
WORKDIR /opt/workload
COPY docker/check-base.sh docker/requirements-workload.txt ./
RUN sh check-base.sh "${RELEASE}" "${BASE}" \
    && python3 -m venv /opt/torch \
    && /opt/torch/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements-workload.txt
COPY docker/workload.py ./
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin workload
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
ENTRYPOINT ["/opt/torch/bin/python", "/opt/workload/workload.py"]
CMD ["benchmark"]
