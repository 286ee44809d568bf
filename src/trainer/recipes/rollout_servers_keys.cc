// What answers of servers do not go with.
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "trainer/recipes/answers_recipe.h"

namespace tdock::trainer {

void AnswersRecipe::BindServers(config::Spec& spec) {
  using Sentences = std::vector<std::string>;
  BindRolloutServers(spec, config_.servers);
  spec.Check({"rollout.servers", "rollout.servers_file", "algorithm.rollout_correction.bypass_mode"},
             [this]() -> Sentences {
               if (!config_.servers.used() || config_.algorithm.bypass_mode != BypassMode::kAlways) return {};
               return {
                   "what another program says of its answers is not, to the last bit, what the policy says: set "
                   "bypass_mode to auto, which computes the log-probabilities here"};
             });
  spec.Check({"rollout.servers", "rollout.servers_file", "rollout.quantization"}, [this]() -> Sentences {
    if (!config_.servers.used() || !config_.rollout.int8_weights) return {};
    return {"servers choose how they compute: remove rollout.quantization"};
  });
  spec.Check({"rollout.servers", "rollout.servers_file", "algorithm.adv_estimator"}, [this]() -> Sentences {
    if (!config_.servers.used() || !config_.algorithm.needs_baseline()) return {};
    return {"remax asks for another answer to each prompt, which servers are not asked for: choose grpo or rloo"};
  });
  spec.Check({"rollout.servers", "rollout.servers_file", "environment.stop"}, [this]() -> Sentences {
    if (!config_.servers.used() || config_.environment.stop.empty()) return {};
    return {"servers are asked for tokens, and do not look for texts that end a turn: remove environment.stop"};
  });
  spec.Check({"rollout.servers", "rollout.servers_file", "trainer.external_stages"}, [this]() -> Sentences {
    if (!config_.servers.used() || !absl::c_linear_search(config_.trainer.dock.external_stages, "rollout")) return {};
    return {"either servers or another process with the dock answer: remove one of them"};
  });
  spec.Check({"rollout.server_weights", "algorithm.rollout_correction.rollout_is"}, [this]() -> Sentences {
    if (config_.servers.weights != ServerWeights::kNone || config_.algorithm.rollout_is != RolloutWeights::kNone) {
      return {};
    }
    return {
        "answers stay those of the weights that the servers have, from which the policy moves away with each step: set "
        "rollout_is to token or sequence, which weights them by that, or rollout.server_weights to stream or folder"};
  });
  spec.Check({"rollout.server_weights", "async_training.max_version_lag"}, [this]() -> Sentences {
    if (config_.servers.weights != ServerWeights::kNone || config_.async.max_version_lag < 0) return {};
    return {"answers of weights that never change are soon too old, whoever is asked again: remove max_version_lag"};
  });
}

}  // namespace tdock::trainer
