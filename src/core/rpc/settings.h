// The setup of gRPC, on both sides. For this module only.
#pragma once

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include "core/rpc/stream_client.h"
#include "core/rpc/stream_server.h"

namespace tdock::rpc {

// gRPC's errors go to stderr, as lines that a peer's data cannot break; $GRPC_VERBOSITY=DEBUG shows more. Also turns
// off the deadlock detection of Abseil's mutexes, which gRPC uses; it is on if Abseil was built with assertions, as
// Debian's is. Affects the whole process; may be called again.
void SetUpProcess();

void ApplyServerSettings(grpc::ServerBuilder& builder, const StreamServerOptions& options);
grpc::ChannelArguments ClientSettings(const StreamClientOptions& options);

}  // namespace tdock::rpc
