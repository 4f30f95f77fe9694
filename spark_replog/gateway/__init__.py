"""The gateway: a stateless process that answers Kafka's wire protocol over a store. Needs the extra ``gateway``."""
