# Both images from one file, each a static executable on an empty base:
#   docker build --target operator -t mqtt-loadtest-operator:dev .
#   docker build --target worker -t mqtt-loadtest-worker:dev .
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN scripts/static-binaries.sh && mkdir /out && \
    cp target/*/release/mqtt-loadtest target/*/release/mqtt-loadtest-worker /out/

FROM scratch AS worker
COPY --from=build /out/mqtt-loadtest-worker /mqtt-loadtest-worker
USER 65532:65532
ENTRYPOINT ["/mqtt-loadtest-worker"]

FROM scratch AS operator
COPY --from=build /out/mqtt-loadtest /mqtt-loadtest
USER 65532:65532
ENTRYPOINT ["/mqtt-loadtest"]
