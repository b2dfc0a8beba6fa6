"""Objects as bytes and as files: the serializer, shared-memory segments, a node's store."""
