# A serving image: penstock and one of its serving extras, without torch.
#   docker build -t penstock .
#   docker run --rm -p 8000:8000 -p 8001:8001 -v "$PWD/models:/models:ro" penstock
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
ARG EXTRAS=serve
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY penstock penstock
COPY train train
COPY export export
COPY serve serve
COPY bench bench
RUN python -m venv /opt/penstock \
 && /opt/penstock/bin/pip install --no-cache-dir --no-compile ".[${EXTRAS}]" \
 && /opt/penstock/bin/pip uninstall --yes --quiet pip setuptools

FROM ${BASE}
LABEL org.opencontainers.image.title="penstock" \
      org.opencontainers.image.description="Serves penstock artifacts and ONNX files over HTTP and gRPC" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 10001 --no-create-home penstock
COPY --from=build /opt/penstock /opt/penstock
ENV PATH=/opt/penstock/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER penstock
EXPOSE 8000 8001
VOLUME /models
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["penstock", "health", "http://127.0.0.1:8000"]
# The exec form, so that SIGTERM reaches the server and drains it.
ENTRYPOINT ["penstock"]
CMD ["serve", "/models", "--host", "0.0.0.0"]
