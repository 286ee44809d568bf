// Everything that a run reads or makes before it writes anything.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "data/run_data.h"
#include "model/decoder/decoder.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "trainer/loop/recipe.h"

namespace tdock::trainer {

struct RunInputs {
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<model::Decoder> decoder;
  std::map<std::string, RoleModel> models;  // of Recipe::models()
  std::vector<int32_t> end_tokens;          // end-of-answer tokens; the tokenizer's first
  std::unique_ptr<reward::Reward> reward;
  std::optional<text::ChatTemplate> chat_template;  // for an environment, where the model has one
  data::RunData data;
  data::RunData ptx;  // of Recipe::ptx_data()
  std::vector<data::EncodedSample> validation;
  data::DataLog log;  // that of LoadRunInputs()
};

// Whether this process scores answers: those of the rollout, unless another process does, or of a validation.
bool ScoresHere(const StepShape& shape, const RunConfig& config);

// What a process needs of them that carries out some stages of a run: the models, always, and
struct InputParts {
  bool data = true;    // what the run trains on, and validates with
  bool ptx = true;     // the data of Recipe::ptx_data(), which the ranks that train the policy each read
  bool reward = true;  // the programs that score answers, where the configuration names some
};

// Sets the recipe's `threads` where that is 0, and the threads of operations. InvalidArgument if the device, the model,
// the data or the lengths are unusable; other codes if a file cannot be read. `log` gets lines about the data. Does not
// throw.
absl::StatusOr<RunInputs> LoadRunInputs(Recipe& recipe, Env& env, const data::DataLog& log,
                                        const InputParts& parts = {});

}  // namespace tdock::trainer
