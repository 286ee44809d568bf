// How gRPC is set up, on both sides. For this module only.
#pragma once

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include "rpc/stream_client.h"
#include "rpc/stream_server.h"

namespace tdock::rpc {

void ApplyServerSettings(grpc::ServerBuilder& builder, const StreamServerOptions& options);
grpc::ChannelArguments ClientSettings(const StreamClientOptions& options);

}  // namespace tdock::rpc
