"""Traces of requests for an OpenTelemetry collector (--otlp-traces-endpoint). All but `otel` is plain
Python: without the flag nothing of OpenTelemetry is imported."""
