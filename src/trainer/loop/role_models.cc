#include "trainer/loop/role_models.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "data/data_config.h"
#include "model/decoder/checkpoint.h"
#include "model/files/config.h"
#include "text/tokenizer.h"

namespace tdock::trainer {
namespace {

// A token that two tokenizers do not share; nothing where they have the same.
std::optional<std::string> Difference(const text::Tokenizer& policy, const text::Tokenizer& other) {
  for (int32_t id = 0; id < std::max(policy.vocab_size(), other.vocab_size()); ++id) {
    const auto of_policy = policy.IdToToken(id), of_other = other.IdToToken(id);
    if (of_policy == of_other) continue;
    return absl::StrCat("token ", id, " is ", of_other ? absl::StrCat("\"", *of_other, "\"") : "unknown",
                        ", and of the policy ", of_policy ? absl::StrCat("\"", *of_policy, "\"") : "unknown");
  }
  return std::nullopt;
}

// Sets what the model reads.
absl::Status FindTokens(Env& env, const RunConfig& config, const RunInputs& inputs, RoleModel& model) {
  const std::string& folder = model.role.section->path;
  const text::Tokenizer& policy = *inputs.tokenizer;
  auto own = text::LoadTokenizer(env, folder);
  if (absl::IsNotFound(own.status())) {
    const int64_t size = model.policy.decoder.config().vocab_size, needed = inputs.decoder->config().vocab_size;
    if (size == needed) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("it has no tokenizer of its own, and a vocabulary of ", size,
                                                   " tokens where the policy has ", needed,
                                                   ": copy the tokenizer's files of its training into the folder"));
  }
  if (!own.ok()) return own.status();
  const std::optional<std::string> difference = Difference(policy, **own);
  data::DataConfig of_model = config.data;
  of_model.chat_template.clear();
  absl::StatusOr<text::ChatTemplate> own_template = data::ResolveTemplate(env, of_model, folder);
  if (!own_template.ok() && !absl::IsNotFound(own_template.status())) return own_template.status();
  if (!difference) {
    if (model.role.trained || !own_template.ok()) return absl::OkStatus();
    const absl::StatusOr<text::ChatTemplate> policys = data::ResolveTemplate(env, config.data, config.model.path);
    // Without a template, the policy's prompts are no turns.
    if (!policys.ok() || policys->Description() == own_template->Description()) return absl::OkStatus();
  } else if (model.role.trained) {
    return absl::InvalidArgumentError(absl::StrCat("it must read the policy's tokens, but has others (", *difference,
                                                   "): give a model with the policy's tokenizer"));
  }
  if ((*own)->vocab_size() > model.policy.decoder.config().vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("its tokenizer has ", (*own)->vocab_size(), " tokens, but it only ",
                                                   model.policy.decoder.config().vocab_size));
  }
  model.own_tokenizer = *std::move(own);
  if (own_template.ok()) model.own_template = *std::move(own_template);
  return absl::OkStatus();
}

absl::StatusOr<RoleModel> LoadRole(const Recipe& recipe, const RunConfig& config, const ModelRole& role, Env& env,
                                   const RunInputs& inputs) {
  const uint64_t seed = DeriveSeed(SeedFor(config, SeedPurpose::kRoles), role.trained ? 1 : 0);
  const ModelOptions& options = role.trained ? *role.section : static_cast<const ModelOptions&>(config.model);
  TDOCK_ASSIGN_OR_RETURN(model::Decoder decoder,
                         model::LoadCheckpoint(env, role.section->path, inputs.decoder->device(),
                                               {.dtype = options.weight_dtype(),
                                                .value_head = role.trained,
                                                .seed = seed,
                                                .rope_scaling = role.trained ? options.rope_scaling.json() : ""}));
  if (role.trained) {
    TDOCK_RETURN_IF_ERROR(options.Apply(seed, decoder));
  } else if (decoder.config().head != model::Head::kValue) {
    return absl::InvalidArgumentError(
        "it is a language model, which scores nothing: give a reward model (recipe rm makes one)");
  } else {
    decoder.SetComputeType(options.compute_dtype);
    decoder.SetBatchInvariant(options.batch_invariant);
  }
  RoleModel model{.role = role, .policy = Policy{std::move(decoder)}};
  TDOCK_RETURN_IF_ERROR(FindTokens(env, config, inputs, model));
  const int64_t positions = model.policy.decoder.config().context_length();
  if (model.own_tokenizer == nullptr) {
    const int64_t needed = recipe.longest_tokens();
    model.policy.decoder.FixRopeLength(needed);
    if (needed > positions) {
      return absl::InvalidArgumentError(
          absl::StrCat("it has only ", positions, " positions; ", recipe.longest_keys(), " = ", needed, " tokens"));
    }
  }
  return model;
}

}  // namespace

absl::StatusOr<std::map<std::string, RoleModel>> LoadRoles(const Recipe& recipe, const RunConfig& config, Env& env,
                                                           const RunInputs& inputs) {
  std::map<std::string, RoleModel> models;
  for (const ModelRole& role : recipe.models()) {
    absl::StatusOr<RoleModel> model = LoadRole(recipe, config, role, env, inputs);
    if (!model.ok()) {
      return Annotate(model.status(), absl::StrCat(role.name, ".model.path = ", role.section->path));
    }
    models.emplace(role.name, *std::move(model));
  }
  return models;
}

}  // namespace tdock::trainer
