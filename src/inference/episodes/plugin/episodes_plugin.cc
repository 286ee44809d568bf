#include <memory>

#include "absl/status/statusor.h"
#include "inference/episodes/endpoint_server.h"
#include "trainer/environment/episode_endpoints.h"

extern "C" void tdock_open_episode_endpoints(
    const tdock::environment::EndpointOptions& options,
    absl::StatusOr<std::unique_ptr<tdock::environment::EpisodeEndpoints>>* opened) {
  *opened = tdock::inference::StartEndpoints(options);
}
