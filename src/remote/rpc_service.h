// Serves a dock over gRPC.
#pragma once

#include "rpc/stream_server.h"
#include "wire/service.h"

namespace tdock {

// What a stream server needs to answer the methods of envelope.h. The service must outlive the server.
rpc::HandlerFactory ServeOverRpc(Service& service);

}  // namespace tdock
