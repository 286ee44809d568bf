// Serves the endpoints of episodes.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "trainer/environment/episode_endpoints.h"

namespace tdock::inference {

// See environment::OpenEpisodeEndpoints().
//
// A request names its episode by a key: in its path, or for the path /v1 as its bearer token. Streams have one piece,
// when the reply is complete.
absl::StatusOr<std::unique_ptr<environment::EpisodeEndpoints>> StartEndpoints(
    const environment::EndpointOptions& options);

}  // namespace tdock::inference
