// How gRPC is set up, on both sides. For this module only.
#pragma once

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include "core/rpc/stream_client.h"
#include "core/rpc/stream_server.h"

namespace tdock::rpc {

// gRPC's errors go to stderr, as lines that what a peer sends cannot break; $GRPC_VERBOSITY=DEBUG shows more. And
// Abseil's locks, which are gRPC's, do not look for cycles among themselves, which they do where Abseil was built with
// assertions, as Debian's is. Concerns the whole process; harmless to repeat.
void SetUpProcess();

void ApplyServerSettings(grpc::ServerBuilder& builder, const StreamServerOptions& options);
grpc::ChannelArguments ClientSettings(const StreamClientOptions& options);

}  // namespace tdock::rpc
