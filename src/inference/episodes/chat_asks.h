// Limits of what an agent may ask for while it is trained.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "inference/protocol/ask.h"
#include "inference/protocol/problem.h"

namespace tdock::inference {

// A problem for what an endpoint does not do, named by its field: several answers to a request, log-probabilities
// beside those of the reply's own tokens, a conversation that does not end where a reply begins, and which tokens may
// come by their ids, since a row is trained on what the model says by itself.
std::optional<Problem> CheckChatAsk(const Ask& ask);

// Sampling that the request asks for and does not get, because the run says how replies are sampled: "temperature=0.2".
// `temperature` is the run's.
std::vector<std::string> UnusedSampling(const SamplingAsk& ask, double temperature);

}  // namespace tdock::inference
