package netproxy

import "sandboxd/netproxy/internal/proxy"

const refusedHeader = proxy.RefusedHeader
