# Sourced: tells the flwr command where the SuperLink is, as "site". All scripts run beside it.
mkdir -p "$FLWR_HOME"
cat > "$FLWR_HOME/config.toml" <<'END'
[superlink]
default = "site"

[superlink.site]
address = "127.0.0.1:8000"
root-certificates = "/var/fedshift/public/ca.crt"
END
