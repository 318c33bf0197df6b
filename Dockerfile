# Sluice in a container: `docker build -t sluice .`
#
# Two stages: one that compiles (a Rust toolchain, a C compiler, make and perl; librdkafka and OpenSSL
# are built from their crates), and one that has the binary alone, for a user without rights.

FROM rust:1.95.0-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock rust-toolchain.toml ./
COPY benches benches
COPY config config
COPY src src
RUN cargo build --release --locked --bin sluice && strip target/release/sluice

FROM debian:bookworm-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin sluice \
    && install -d -o sluice -g sluice /data
COPY --from=build /src/target/release/sluice /usr/local/bin/sluice
USER 10001
# Where the embedded profile keeps everything. With several nodes nothing is kept here.
ENV STORAGE_EMBEDDED_PATH=/data
VOLUME /data
# MQTT over TCP, TLS, WebSocket, both; HTTP: health, metrics, administration.
EXPOSE 1883 8883 8084 8085 8083
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=3 CMD ["sluice", "health"]
# SIGTERM: no new connections, DISCONNECT 0x8B, everything written.
STOPSIGNAL SIGTERM
ENTRYPOINT ["sluice"]
