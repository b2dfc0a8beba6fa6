"""Objects as bytes and as files: serializer, shared-memory segments, a node's store."""
