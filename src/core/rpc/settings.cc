#include "core/rpc/settings.h"

#include <grpc/support/log.h>

#include <cstdio>
#include <limits>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace tdock::rpc {
namespace {

constexpr int kNever = std::numeric_limits<int>::max();

// Settings of a connection, for either side.
template <class SetInt>
void ApplyToConnection(const SetInt& set) {
  // A fixed window for each stream instead of one estimated by probes, which cost more than they gain here.
  set(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 8 << 20);
  // A message in one frame, and in few slices: gRPC's defaults of 16 and 8 KiB cost large messages a tenth of their
  // speed.
  set(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
  set(GRPC_ARG_TCP_READ_CHUNK_SIZE, 128 << 10);
}

}  // namespace

void SetUpProcess() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  gpr_set_log_function([](gpr_log_func_args* args) {
    constexpr size_t kMaxBytes = 500;
    const std::string line = absl::CHexEscape(absl::string_view(args->message).substr(0, kMaxBytes));
    std::fprintf(stderr, "gRPC: %s\n", line.c_str());
  });
}

void ApplyServerSettings(grpc::ServerBuilder& builder, const StreamServerOptions& options) {
  const auto set = [&](const char* name, int value) { builder.AddChannelArgument(name, value); };
  ApplyToConnection(set);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  set(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1);
  set(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams);
  set(GRPC_ARG_MAX_METADATA_SIZE, 16 << 10);
  // A stopped client is not dead: the server sends no keepalive pings.
  set(GRPC_ARG_KEEPALIVE_TIME_MS, kNever);
  // Clients may ping as often as they like.
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  set(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
}

grpc::ChannelArguments ClientSettings(const StreamClientOptions& options) {
  grpc::ChannelArguments arguments;
  const auto set = [&](const char* name, int value) { arguments.SetInt(name, value); };
  ApplyToConnection(set);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  arguments.SetMaxSendMessageSize(-1);
  set(GRPC_ARG_MAX_METADATA_SIZE, 64 << 10);
  // A separate connection for each client, without a proxy, and no automatic retries.
  set(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  set(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  set(GRPC_ARG_ENABLE_RETRIES, 0);
  set(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  set(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  set(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5'000);  // how long an attempt may take
  set(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  // A machine that is gone sends nothing: it is detected after the sum of both. A server that is stopped for less is
  // not.
  set(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  if (!options.tls_server_name.empty()) arguments.SetSslTargetNameOverride(options.tls_server_name);
  return arguments;
}

}  // namespace tdock::rpc
