// From what a client asks to what an engine is asked.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "core/base/status.h"
#include "engine/engine.h"
#include "serve/protocol/ask.h"
#include "serve/protocol/problem.h"
#include "serve/served_model.h"

namespace tdock::serve {

// One for each prompt, in their order; without on_token. `seed` and `identity` are for requests that bring no seed.
// Texts are read up to as many tokens as the context has room for. `stop` is polled meanwhile; its error, which is a
// DeadlineExceeded where the time is up, becomes the problem.
std::variant<std::vector<engine::Request>, Problem> RequestsOf(const Ask& ask, const ServedModel& model, uint64_t seed,
                                                               uint64_t identity, const StopCheck& stop = {});

// InvalidArgument and the like are the client's, with the status 400; others the server's.
Problem ProblemOf(const absl::Status& status);

}  // namespace tdock::serve
