"""The link to solar-control: one Socket.IO connection that this host keeps up by itself."""
