#include "trainer/preflight/run_numbers.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/config/nearest_values.h"
#include "trainer/preflight/grouped.h"

namespace tdock::trainer {
namespace {

using config::NearestDivisors;
using config::NearestMultiples;

// Keys of batches and micro-batches take no more.
constexpr int64_t kMostOfABatch = int64_t{1} << 20;

int64_t CeilOf(int64_t value, int64_t by) { return (value + by - 1) / by; }

// "data.train_batch_size = 640 or 672".
std::string Suggest(const Setting& setting, const std::string& values) {
  return setting.key.empty() || values.empty() ? values : absl::StrCat(setting.key, " = ", values);
}

// "data.max_length = 512 or less".
std::string SuggestMost(const Setting& most) { return Suggest(most, absl::StrCat(most.value, " or less")); }

// "critic.mini_batch", but "mini_batch" of the actor.
std::string NameFor(const RoleNumbers& role, const char* name) {
  return role.role == "actor" ? name : absl::StrCat(role.role, ".", name);
}

// "2 x 2 x 1", of TP, PP and CP.
std::string Division(const RoleNumbers& role) {
  return absl::StrCat(role.tensor.value, " x ", role.pipeline.value, " x ", role.context.value);
}

// The checks of one RunNumbers.
class Checker {
 public:
  explicit Checker(const RunNumbers& numbers) : n_(numbers), samples_(n_.prompts.value * n_.samples_per_prompt.value) {}

  NumberReport Report() && {
    for (const RoleNumbers& role : n_.roles) CheckDivision(role);
    CheckBatch();
    for (const RoleNumbers& role : n_.roles) {
      CheckMicroForms(role);
      if (role.data_parallel() == 0) continue;
      CheckShares(role);
      if (role.role == "actor" || role.role == "critic") CheckUpdates(role);
      CheckTokens(role);
    }
    CheckLengths();
    for (const DispatchSize& dispatch : n_.dispatch_sizes) CheckDispatch(dispatch);
    CheckOptions();
    DeriveSteps();
    return std::move(report_);
  }

 private:
  void Derive(std::string name, int64_t value, std::string how) {
    report_.derived.push_back({std::move(name), value, std::move(how)});
  }

  void Violate(std::initializer_list<const Setting*> settings, std::string what, std::string nearest = "") {
    std::vector<std::string> keys;
    for (const Setting* setting : settings) {
      for (const absl::string_view key : absl::StrSplit(setting->key, ", ", absl::SkipEmpty())) {
        if (!absl::c_linear_search(keys, key)) keys.emplace_back(key);
      }
    }
    report_.violations.push_back({absl::StrJoin(keys, ", "), std::move(what), std::move(nearest)});
  }

  // "1024 prompts x 5", or "32 samples" where there is one of each prompt.
  std::string Counted(int64_t prompts) const {
    if (n_.samples_per_prompt.key.empty()) return absl::StrCat(prompts, " samples");
    return absl::StrCat(prompts, " prompts x ", n_.samples_per_prompt.value);
  }

  // "1024 prompts x 5 / 8 ranks".
  std::string Share(int64_t prompts, int64_t ranks) const {
    return absl::StrCat(Counted(prompts), ranks > 1 ? absl::StrCat(" / ", ranks, " ranks") : "");
  }

  // The batches nearest to this one that mini-batches divide, and whose samples `of` divides.
  std::string NearestBatches(const RoleNumbers& role, int64_t of) const {
    const int64_t prompts = of / std::gcd(of, n_.samples_per_prompt.value);
    const int64_t mini = std::max<int64_t>(role.mini_batch.value, 1);
    if (prompts / std::gcd(prompts, mini) > kMostOfABatch / mini) return "";  // the least is too many
    return Suggest(n_.prompts, NearestMultiples(n_.prompts.value, std::lcm(prompts, mini), kMostOfABatch));
  }

  // The nearest mini-batches that divide the batch and among the ranks.
  std::string NearestMiniBatches(const RoleNumbers& role) const {
    const auto is_shared = [&](int64_t mini) { return mini * n_.samples_per_prompt.value % role.data_parallel() == 0; };
    return Suggest(role.mini_batch, NearestDivisors(role.mini_batch.value, n_.prompts.value, is_shared));
  }

  // Of a role that the actor's settings divide, what is said of the actor is enough.
  bool IsDividedAsActor(const RoleNumbers& role) const {
    const RoleNumbers& actor = n_.roles[0];
    return &role != &actor && role.devices == actor.devices && role.tensor == actor.tensor &&
           role.pipeline == actor.pipeline && role.context == actor.context;
  }

  void CheckDivision(const RoleNumbers& role) {
    if (IsDividedAsActor(role)) return;
    if (role.is_divided()) {
      Derive(NameFor(role, "devices"), role.devices.value, role.devices.key.empty() ? "one process" : role.devices.key);
      Derive(NameFor(role, "model_parallel"), role.tensor.value * role.pipeline.value,
             absl::StrCat("tensor ", role.tensor.value, " x pipeline ", role.pipeline.value));
      if (role.data_parallel() > 0) {
        Derive(NameFor(role, "data_parallel"), role.data_parallel(),
               absl::StrCat(role.devices.value, " devices / (", Division(role), ")"));
      }
    }
    if (role.data_parallel() == 0) {
      Violate({&role.devices, &role.tensor, &role.pipeline, &role.context},
              absl::StrCat(role.devices.value, " devices do not divide into copies of the ", role.role, " model on ",
                           Division(role), " = ", role.replica(), " devices each"),
              absl::StrCat(NearestMultiples(role.devices.value, role.replica()), " devices"));
    }
    if (n_.heads > 0 && n_.heads % role.tensor.value != 0) {
      Violate({&role.tensor},
              absl::StrCat("the ", n_.heads, " attention heads of the model do not divide into ", role.tensor.value,
                           " parts"),
              Suggest(role.tensor, NearestDivisors(role.tensor.value, n_.heads, [&](int64_t parts) {
                        return role.devices.value % (parts * role.pipeline.value * role.context.value) == 0;
                      })));
    }
    if (n_.layers > 0 && n_.layers % role.pipeline.value != 0) {
      Violate(
          {&role.pipeline},
          absl::StrCat("the ", n_.layers, " layers of the model do not divide into ", role.pipeline.value, " stages"),
          Suggest(role.pipeline, NearestDivisors(role.pipeline.value, n_.layers, [&](int64_t stages) {
                    return role.devices.value % (stages * role.tensor.value * role.context.value) == 0;
                  })));
    }
  }

  void CheckBatch() {
    Derive("real_train_batch_size", samples_, Counted(n_.prompts.value));
    if (n_.filters_groups) {
      CheckRounds();
    } else if (n_.generated_prompts.value > 0 && n_.generated_prompts.value != n_.prompts.value) {
      Violate(
          {&n_.generated_prompts, &n_.prompts},
          absl::StrCat(n_.generated_prompts.value, " prompts would be answered, and ", n_.prompts.value, " trained on"),
          Suggest(n_.generated_prompts, absl::StrCat(n_.prompts.value)));
    }
  }

  // Of batches that are generated until enough of their prompts can be trained on.
  void CheckRounds() {
    const int64_t generated = n_.generated_prompts.value > 0 ? n_.generated_prompts.value : n_.prompts.value;
    Derive("generated_batch", generated * n_.samples_per_prompt.value, Counted(generated));
    const int64_t least = CeilOf(n_.prompts.value, generated);
    Derive("least_rounds", least, absl::StrCat(n_.prompts.value, " prompts / ", generated, ", if none is left out"));
    if (n_.most_rounds.value == 0) return;
    if (n_.most_rounds.value >= least) {
      Derive("most_rounds", n_.most_rounds.value,
             absl::StrCat(
                 "at least ",
                 Percent(static_cast<double>(n_.prompts.value) / static_cast<double>(n_.most_rounds.value * generated)),
                 " of the prompts must have answers with different rewards"));
      return;
    }
    Violate({&n_.most_rounds, &n_.generated_prompts, &n_.prompts},
            absl::StrCat(n_.most_rounds.value, " rounds answer ", n_.most_rounds.value * generated,
                         " prompts, less than the ", n_.prompts.value, " of a batch"),
            Suggest(n_.most_rounds, absl::StrCat(least, " or more")));
  }

  void CheckMicroForms(const RoleNumbers& role) {
    if (role.all_micro.value == 0) return;
    const int64_t ranks = std::max<int64_t>(role.data_parallel(), 1);
    if (role.micro_batch.value > 0) {
      Violate({&role.micro_batch, &role.all_micro}, "the micro-batch is given in two forms; keep the one per device");
    } else if (role.all_micro.value % ranks != 0) {
      Violate(
          {&role.all_micro, &role.devices, &role.tensor, &role.pipeline, &role.context},
          absl::StrCat("a micro-batch of ", role.all_micro.value, " samples does not divide among ", ranks, " ranks"),
          Suggest(role.all_micro, NearestMultiples(role.all_micro.value, ranks, kMostOfABatch)));
    }
  }

  // 0: it does not act.
  static int64_t MicroOf(const RoleNumbers& role) {
    if (role.dynamic) return 0;
    return role.micro_batch.value > 0 ? role.micro_batch.value : role.all_micro.value / role.data_parallel();
  }
  static const Setting& MicroSetting(const RoleNumbers& role) {
    return role.micro_batch.value > 0 ? role.micro_batch : role.all_micro;
  }

  // Of a batch, as both programs divide it.
  void CheckShares(const RoleNumbers& role) {
    const int64_t ranks = role.data_parallel();
    const int64_t micro = MicroOf(role);
    const bool is_trained = role.role == "actor" || role.role == "critic";
    if (is_trained && role.is_divided()) {
      const int64_t minimal = ranks * std::max<int64_t>(micro, 1);
      Derive(NameFor(role, "minimal_bsz"), minimal,
             micro > 0 ? absl::StrCat(ranks, " ranks x micro-batch ", micro) : absl::StrCat(ranks, " ranks"));
      if (samples_ % minimal != 0) {
        Violate({&n_.prompts, &n_.samples_per_prompt, &MicroSetting(role), &role.devices, &role.tensor, &role.pipeline,
                 &role.context},
                absl::StrCat(Counted(n_.prompts.value), " = ", samples_, " samples do not divide among ", ranks,
                             " ranks", micro > 0 ? absl::StrCat(" in micro-batches of ", micro) : ""),
                NearestBatches(role, minimal));
      }
    }
    if (n_.whole_groups && role.role != "rollout") CheckWholeGroups(role, ranks, micro);
  }

  // As in MindSpeed-RL.
  void CheckWholeGroups(const RoleNumbers& role, int64_t ranks, int64_t micro) {
    const int64_t prompts = n_.prompts.value;
    const bool divides = prompts % ranks == 0;
    if (!divides && !IsDividedAsActor(role)) {
      Violate({&n_.prompts, &role.devices, &role.tensor, &role.pipeline, &role.context},
              absl::StrCat(prompts, " prompts do not divide among the ", ranks, " ranks of the ", role.role),
              NearestBatches(role, ranks * n_.samples_per_prompt.value));
    }
    if (micro == 0) return;
    const int64_t share = divides ? samples_ / ranks : samples_;
    if (share % micro == 0) return;
    Violate({&MicroSetting(role), &n_.prompts, &n_.samples_per_prompt, &role.devices, &role.tensor, &role.pipeline,
             &role.context},
            absl::StrCat("micro-batches of ", micro, " do not divide the ", share, " samples of a ",
                         divides ? "rank" : "batch"),
            Suggest(MicroSetting(role), NearestDivisors(micro, share, [&](int64_t candidate) {
                      const int64_t mini = role.mini_batch.value * n_.samples_per_prompt.value;
                      return mini % ranks == 0 && mini / ranks % candidate == 0;
                    })));
  }

  void CheckUpdates(const RoleNumbers& role) {
    const int64_t ranks = role.data_parallel();
    const int64_t micro = MicroOf(role);
    const bool has_mini = role.mini_batch.value > 0;
    const int64_t mini = has_mini ? role.mini_batch.value : n_.prompts.value;
    const int64_t mini_samples = mini * n_.samples_per_prompt.value;
    if (n_.prompts.value < mini) {
      Violate({&role.mini_batch, &n_.prompts},
              absl::StrCat("a mini-batch of ", mini, " prompts is more than the ", n_.prompts.value, " of a batch"),
              NearestMiniBatches(role));
    } else if (n_.prompts.value % mini != 0) {
      Violate({&role.mini_batch, &n_.prompts},
              absl::StrCat("mini-batches of ", mini, " do not divide a batch of ", n_.prompts.value, " prompts"),
              NearestMiniBatches(role));
    } else {
      Derive(NameFor(role, "optimizer_steps"), n_.prompts.value / mini,
             absl::StrCat("a batch of ", n_.prompts.value, " / mini-batches of ", mini));
    }
    if (role.is_divided() && samples_ % ranks == 0) {
      Derive(NameFor(role, "local_batch"), samples_ / ranks, Share(n_.prompts.value, ranks));
    }
    if (has_mini && mini_samples % ranks != 0) {
      Violate({&role.mini_batch, &n_.samples_per_prompt, &role.devices, &role.tensor, &role.pipeline, &role.context},
              absl::StrCat("mini-batches of ", Counted(mini), " = ", mini_samples, " samples do not divide among ",
                           ranks, " ranks"),
              NearestMiniBatches(role));
    }
    if (mini_samples % ranks != 0) return;
    const int64_t local = mini_samples / ranks;
    Derive(NameFor(role, "local_mini_batch"), local, Share(mini, ranks));
    if (micro == 0) return;
    // Without mini-batches, the last micro-batch may be smaller.
    if (has_mini && local % micro != 0) {
      Violate({&MicroSetting(role), &role.mini_batch, &n_.samples_per_prompt, &role.devices, &role.tensor,
               &role.pipeline, &role.context},
              absl::StrCat("micro-batches of ", micro, " do not divide the ", local,
                           " samples that a rank has of a mini-batch"),
              Suggest(MicroSetting(role), NearestDivisors(micro, local)));
      return;
    }
    Derive(NameFor(role, "accumulations"), CeilOf(local, micro),
           absl::StrCat("local mini-batch ", local, " / micro-batch ", micro));
  }

  void CheckTokens(const RoleNumbers& role) {
    if (!role.dynamic) return;
    const int64_t most = role.max_tokens.value * role.context.value;
    Derive(NameFor(role, "max_tokens"), most,
           absl::StrCat(role.max_tokens.value, " tokens x context parallel ", role.context.value));
    if (most >= n_.longest.value) return;
    Violate({&role.max_tokens, &role.context, &n_.longest},
            absl::StrCat("a pass of the ", role.role, " takes at most ", role.max_tokens.value, " x ",
                         role.context.value, " = ", most, " tokens; the longest sequence has ", n_.longest.value),
            Suggest(role.max_tokens, absl::StrCat(CeilOf(n_.longest.value, role.context.value), " or more")));
  }

  void CheckLengths() {
    const int64_t longest = n_.longest.value;
    const int64_t max_model_len = n_.max_model_len.value > 0 ? n_.max_model_len.value : longest;
    const std::string parts = n_.prompt_length.value > 0
                                  ? absl::StrCat(n_.prompt_length.value, " + ", n_.response_length.value)
                                  : n_.longest.key;
    Derive("max_model_len", max_model_len, n_.max_model_len.value > 0 ? n_.max_model_len.key : parts);
    const int64_t room = max_model_len - n_.prompt_length.value - (n_.leaves_last_position ? 1 : 0);
    if (n_.prompt_length.value > 0 && room >= 0) {
      Derive("max_new_tokens", std::min(n_.response_length.value, room),
             absl::StrCat("after the longest prompt: min(", n_.response_length.value, ", ", max_model_len, " - ",
                          n_.prompt_length.value,
                          n_.leaves_last_position ? " - 1, by rollout.leave_last_position)" : ")"));
    }
    for (const Setting* limit : {&n_.max_model_len, &n_.context_length}) {
      if (limit->value == 0 || limit->value >= longest) continue;
      Violate({limit, &n_.longest},
              absl::StrCat(limit->value, " tokens are less than the longest sequence has, ", parts, " = ", longest),
              Suggest(*limit, absl::StrCat(longest, " or more")));
    }
    if (n_.max_model_len.value > 0 && n_.max_model_len.value < n_.sequence_length.value) {
      Violate(
          {&n_.max_model_len, &n_.sequence_length},
          absl::StrCat("the engine takes ", n_.max_model_len.value, " tokens, the trainer ", n_.sequence_length.value),
          Suggest(n_.max_model_len, absl::StrCat(n_.sequence_length.value, " or more")));
    }
    if (n_.positions == 0) return;
    Derive("positions", n_.positions, "of the model, with its rope scaling");
    for (const Setting* needed : {&n_.longest, &n_.context_length}) {
      if (needed->value <= n_.positions) continue;
      Violate({needed},
              absl::StrCat(needed->value, " tokens are more than the ", n_.positions, " positions of the model"),
              SuggestMost(needed == &n_.longest ? LengthFor(n_.positions) : Setting{n_.positions, needed->key}));
    }
  }

  // Of a sequence of `tokens`: what its part that is best to change is then.
  Setting LengthFor(int64_t tokens) const {
    const Setting& prompt = n_.prompt_length;
    const Setting& response = n_.response_length;
    if (prompt.value == 0) return {tokens, n_.longest.key};
    if (prompt.value < tokens) return {tokens - prompt.value, response.key};
    if (response.value < tokens) return {tokens - response.value, prompt.key};
    return {tokens, absl::StrCat(prompt.key, " + ", response.key)};
  }

  void CheckDispatch(const DispatchSize& dispatch) {
    const int64_t share = samples_ / dispatch.ranks;
    const Setting& size = dispatch.size;
    const std::string of_batch = dispatch.ranks == 1 ? "a batch" : absl::StrCat("one of ", dispatch.ranks, " ranks");
    Derive(absl::StrCat(dispatch.name, "_dispatch_size"), size.value > 0 ? size.value : share,
           size.value > 0 ? size.key : absl::StrCat("all samples of ", of_batch));
    if (size.value == 0) return;
    // MindSpeed-RL compares with prompts, though it takes samples.
    const int64_t least = CeilOf(dispatch.at_least_prompts.value, dispatch.ranks);
    const int64_t group = dispatch.groups ? n_.samples_per_prompt.value : 1;
    const std::string nearest = Suggest(size, NearestDivisors(size.value, samples_, [&](int64_t candidate) {
                                          return candidate >= least && candidate <= share && candidate % group == 0;
                                        }));
    if (samples_ % size.value != 0) {
      Violate({&size, &n_.prompts, &n_.samples_per_prompt},
              absl::StrCat(size.value, " samples at a time do not divide the ", samples_, " of a batch"), nearest);
    }
    if (size.value > share) {
      Violate({&size, &n_.prompts, &n_.samples_per_prompt},
              absl::StrCat(size.value, " samples at a time are more than the ", share, " of ", of_batch), nearest);
    }
    if (size.value % group != 0) {
      Violate({&size, &n_.samples_per_prompt},
              absl::StrCat(size.value, " samples at a time are no whole groups of ", group), nearest);
    }
    if (size.value < least) {
      Violate({&size, &dispatch.at_least_prompts},
              absl::StrCat(size.value, " at a time are less than a rank's share of a mini-batch, ",
                           dispatch.at_least_prompts.value, " / ", dispatch.ranks),
              nearest);
    }
  }

  void CheckOptions() {
    if (n_.has_clip && n_.clip_low > n_.clip_high) {
      const Setting low{.key = "actor.clip_ratio_low"}, high{.key = "actor.clip_ratio_high"};
      Violate({&low, &high}, absl::StrCat("the lower clip, ", n_.clip_low, ", is above the upper one, ", n_.clip_high),
              Suggest(low, absl::StrCat(n_.clip_high, " or less")));
    }
    if (n_.overlong_buffer.value > 0 && n_.overlong_buffer.value >= n_.response_length.value) {
      Violate({&n_.overlong_buffer, &n_.response_length},
              absl::StrCat("the ", n_.overlong_buffer.value,
                           " tokens before a response is too long are not less than its ", n_.response_length.value),
              n_.response_length.value > 1
                  ? Suggest(n_.overlong_buffer, absl::StrCat(n_.response_length.value - 1, " or less"))
                  : "");
    }
    if (n_.verifiers.value != n_.verifier_weights.value) {
      Violate({&n_.verifiers, &n_.verifier_weights},
              absl::StrCat("there are ", n_.verifiers.value, " verifiers and ", n_.verifier_weights.value,
                           " weights; give one weight for each"));
    }
    if (n_.expert_groups.value > 0 && n_.experts.value % n_.expert_groups.value != 0) {
      Violate({&n_.expert_groups, &n_.experts},
              absl::StrCat("the ", n_.experts.value, " experts do not divide into ", n_.expert_groups.value, " groups"),
              Suggest(n_.expert_groups, NearestDivisors(n_.expert_groups.value, n_.experts.value)));
    }
    if (n_.validation_samples && n_.validation_temperature <= 0) {
      const Setting sample{.key = "rollout.val_kwargs.do_sample"}, temperature{.key = "rollout.val_kwargs.temperature"};
      Violate({&temperature, &sample}, "validation samples, which takes a temperature above 0",
              Suggest(temperature, "1, or any above 0"));
    }
  }

  void DeriveSteps() {
    if (n_.epochs.value > 0) Derive("total_epochs", n_.epochs.value, n_.epochs.key);
    if (n_.steps.value == 0) return;
    Derive("total_training_steps", n_.steps.value, n_.steps.key);
    for (const DerivedNumber& derived : std::vector(report_.derived)) {
      if (derived.name != "optimizer_steps" || n_.steps.value > std::numeric_limits<int64_t>::max() / derived.value) {
        continue;
      }
      Derive("total_optimizer_steps", n_.steps.value * derived.value,
             absl::StrCat(n_.steps.value, " steps x ", derived.value));
    }
  }

  const RunNumbers& n_;
  const int64_t samples_;  // of a batch
  NumberReport report_;
};

}  // namespace

NumberReport CheckRunNumbers(const RunNumbers& numbers) { return Checker(numbers).Report(); }

}  // namespace tdock::trainer
