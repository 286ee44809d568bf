#include "trainer/environment/episode_endpoints.h"

#include "core/base/beside_program.h"
#include "core/base/status.h"

namespace tdock::environment {
namespace {

constexpr char kService[] = "libtdock_inference_episodes_plugin.so";

}  // namespace

absl::StatusOr<std::unique_ptr<EpisodeEndpoints>> OpenEpisodeEndpoints(const EndpointOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(
      void* const function,
      LoadBesideProgram(
          kService, kOpenEpisodeEndpoints,
          "what serves the endpoints of agents (`make build`, or the target tdock_inference_episodes_plugin)"));
  absl::StatusOr<std::unique_ptr<EpisodeEndpoints>> opened;
  (*reinterpret_cast<OpenEpisodeEndpointsFunction*>(function))(options, &opened);
  return opened;
}

}  // namespace tdock::environment
