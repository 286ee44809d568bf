#include "trainer/loop/sections.h"

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/utf8.h"
#include "core/config/nearest_values.h"
#include "model/decoder/device.h"
#include "model/files/config.h"
#include "trainer/loop/save_freq.h"
#include "trainer/loop/stop_rule.h"
#include "trainer/stages/columns.h"

namespace tdock::trainer {
namespace {

constexpr double kMaxLossScale = 16777216.0;

void BindSizes(config::Spec& spec, ModelSection& s) {
  spec.String("model.alphabet", &s.alphabet,
              "Without model.path: the characters that the new model knows, each a token, beside padding and end of "
              "text.");
  spec.Int("model.hidden_size", &s.hidden_size, "Width of the residual stream.").AtLeast(1).AtMost(model::kMaxSize);
  spec.Int("model.intermediate_size", &s.intermediate_size, "Width inside the MLP.").AtLeast(1).AtMost(model::kMaxSize);
  spec.Int("model.num_hidden_layers", &s.num_hidden_layers, "Layers.").AtLeast(1).AtMost(model::kMaxLayers);
  spec.Int("model.num_attention_heads", &s.num_attention_heads, "Query heads.").AtLeast(1).AtMost(model::kMaxHeads);
  spec.Int("model.num_key_value_heads", &s.num_key_value_heads, "Key and value heads.")
      .AtLeast(1)
      .AtMost(model::kMaxHeads);
  spec.Int("model.max_position_embeddings", &s.max_position_embeddings, "Longest sequence, in tokens.")
      .AtLeast(2)
      .AtMost(model::kMaxPositions);
  spec.Float("model.rms_norm_eps", &s.rms_norm_eps, "Added to the mean square in RMSNorm.").MoreThan(0);
  spec.Float("model.rope_theta", &s.rope_theta, "Base of the rotary frequencies.").MoreThan(0);
  spec.Bool("model.tie_word_embeddings", &s.tie_word_embeddings, "The output head shares the embedding's weights.");
}

void CheckDock(config::Spec& spec, DockSection& s) {
  spec.Unused(
      {"trainer.dock_token_file", "trainer.dock_tls_ca", "trainer.dock_tls_cert", "trainer.dock_tls_key"},
      [&s] { return !s.shared(); },
      "given without trainer.serve or trainer.dock, so that only this process has the dock");
  spec.Check({"trainer.serve", "trainer.dock"}, [&s]() -> std::vector<std::string> {
    if (s.serve.empty() || s.address.empty()) return {};
    return {"a run either serves its own dock or uses one that is served elsewhere: remove one of the two"};
  });
  spec.Check({"trainer.serve"}, [&s]() -> std::vector<std::string> {
    if (s.serve.empty() || s.serve == "unix" || absl::StartsWith(s.serve, "unix:/")) return {};
    if (!absl::StartsWith(s.serve, "unix:") && absl::StrContains(s.serve, ":")) return {};
    return {"give unix, unix:/PATH with an absolute path, or HOST:PORT such as 127.0.0.1:0"};
  });
  spec.Check({"trainer.dock"}, [&s]() -> std::vector<std::string> {
    if (s.address.empty() || (absl::StrContains(s.address, ":") && s.address != "unix:")) return {};
    return {"give unix:/PATH or HOST:PORT such as 127.0.0.1:7077, as `tdock dock serve` prints them"};
  });
  spec.Check({"trainer.serve", "trainer.dock"}, [&s]() -> std::vector<std::string> {
    const bool unix_socket = absl::StartsWith(absl::StrCat(s.serve, s.address), "unix");
    const bool given = !absl::StrCat(s.token_file, s.tls_ca, s.tls_cert, s.tls_key).empty();
    if (!unix_socket || !given) return {};
    return {"a token and TLS are for HOST:PORT: a Unix socket serves processes of its user only, without them"};
  });
  spec.Check({"trainer.dock_tls_cert", "trainer.dock_tls_key"}, [&s]() -> std::vector<std::string> {
    if (s.tls_cert.empty() == s.tls_key.empty()) return {};
    return {"a certificate and its key go together: give both"};
  });
  spec.Check({"trainer.external_stages"}, [&s]() -> std::vector<std::string> {
    if (s.external_stages.empty() || s.shared()) return {};
    return {"no other process can reach the dock: set trainer.serve (or pass --serve), or trainer.dock"};
  });
}

}  // namespace

void BindModel(config::Spec& spec, ModelSection& s) {
  spec.String(
      "model.path", &s.path,
      "Folder of a model in the Hugging Face layout to start from; empty: random weights, with the alphabet and "
      "the sizes below, which cannot be combined with it.");
  BindSizes(spec, s);
  spec.Choice(
      "model.kernels", &s.kernels,
      {{"auto", std::string("auto")},
       {"avx512_bf16", std::string("avx512_bf16")},
       {"avx512", std::string("avx512")},
       {"avx2", std::string("avx2")},
       {"portable", std::string("portable")}},
      "Instructions that the CPU computes with, for all models of the run. auto: the fastest that the processor "
      "has, or those that the run began with. They decide the last bits of every result, so all ranks must have "
      "the same; portable has the same bits on every processor, and is several times as slow.");
  BindModelOptions(spec, "model.", s);
  spec.Check({"model.path", "model.alphabet"}, [&s]() -> std::vector<std::string> {
    if (!s.path.empty() || !s.alphabet.empty()) return {};
    return {"set model.path to the folder of a model, or model.alphabet for a new one of single characters"};
  });
  spec.Check({"model.lora_rank", "model.path"}, [&s]() -> std::vector<std::string> {
    if (s.lora_rank == 0 || !s.path.empty()) return {};
    return {"adapters need a model to adapt: set model.path"};
  });
  spec.Check({"model.hidden_size", "model.num_attention_heads"}, [&s]() -> std::vector<std::string> {
    if (s.hidden_size % (2 * s.num_attention_heads) == 0) return {};
    const std::string nearest = config::NearestMultiples(s.hidden_size, 2 * s.num_attention_heads);
    return {absl::StrCat(
        "the heads must divide the width into even parts, for the rotary embedding; the width could be ", nearest)};
  });
  spec.Check({"model.num_attention_heads", "model.num_key_value_heads"}, [&s]() -> std::vector<std::string> {
    if (s.num_attention_heads % s.num_key_value_heads == 0) return {};
    const std::string nearest = config::NearestDivisors(s.num_key_value_heads, s.num_attention_heads);
    return {absl::StrCat("the query heads must be a multiple of the key and value heads, which could be ", nearest)};
  });
  spec.Unused(
      {"model.alphabet", "model.hidden_size", "model.intermediate_size", "model.num_hidden_layers",
       "model.num_attention_heads", "model.num_key_value_heads", "model.max_position_embeddings", "model.rms_norm_eps",
       "model.rope_theta", "model.tie_word_embeddings"},
      [&s] { return !s.path.empty(); }, "given together with model.path, whose model has its own");
}

void BindPass(config::Spec& spec, const std::string& micro_key, const std::string& samples,
              const std::string& tokens_key, PassSection& s) {
  spec.Int(
          micro_key, &s.micro_batch_size,
          absl::StrCat(samples, "; limits memory and changes results only where something is dropped (model.dropout); ",
                       "0: as many as ", tokens_key, " allows."))
      .AtLeast(0)
      .AtMost(kMaxBatch);
  spec.Int(tokens_key, &s.max_tokens,
           absl::StrCat("Tokens in such a pass, of prompts and answers, where ", micro_key,
                        " is 0; a longer sample passes alone; 0: 1,024 on the CPU, 16,384 on a GPU."))
      .AtLeast(0)
      .AtMost(int64_t{1} << 40);
  spec.Unused(
      {tokens_key}, [&s] { return s.micro_batch_size > 0; }, absl::StrCat(micro_key, " says how large a pass is"));
}

void BindRollout(config::Spec& spec, RolloutSection& s, bool samples) {
  spec.Int("data.max_response_length", &s.max_response_length,
           "Maximum number of tokens of a generated answer, including its end token.")
      .AtLeast(1)
      .AtMost(model::kMaxPositions);
  if (samples) {
    spec.Int("rollout.n", &s.n, "Samples per prompt: the group that advantages are relative to.")
        .AtLeast(1)
        .AtMost(kMaxBatch);
    spec.Float("rollout.temperature", &s.temperature, "Temperature of sampling and of all log-probabilities.")
        .MoreThan(0);
    spec.Int("rollout.min_new_tokens", &s.min_new_tokens,
             "Tokens that each answer has at least before an end token, unless a prompt leaves less room. "
             "Log-probabilities are those of the policy, which could have ended there. Validations do without.")
        .AtLeast(0)
        .AtMost(model::kMaxPositions);
    spec.Bool("rollout.ignore_eos", &s.ignore_eos,
              "End tokens do not end an answer: each has data.max_response_length tokens, or as many as there is room "
              "for. Validations do without.");
    spec.Check({"rollout.min_new_tokens", "data.max_response_length"}, [&s]() -> std::vector<std::string> {
      if (s.min_new_tokens <= s.max_response_length) return {};
      return {absl::StrCat("an answer cannot have at least ", s.min_new_tokens, " tokens and at most ",
                           s.max_response_length, ": lower the first or raise the second")};
    });
    spec.Bool("rollout.leave_last_position", &s.leave_last_position,
              "A prompt and its answer have at most data.max_prompt_length + data.max_response_length - 1 tokens "
              "together, as in some other systems, instead of one more.");
    spec.Int("rollout.min_response_tokens", &s.min_response_tokens,
             "Prompts with an answer of fewer tokens, its end token included, are left out of the step; 0: none are.")
        .AtLeast(0);
    spec.Check({"rollout.min_response_tokens", "data.max_response_length"}, [&s]() -> std::vector<std::string> {
      if (s.min_response_tokens <= s.max_response_length) return {};
      return {"no answer can be that long, so that every prompt would be left out"};
    });
    spec.Choice("rollout.quantization", &s.int8_weights, {{"none", false}, {"int8", true}},
                "Products of rollouts: int8 rounds weights and what they multiply to 8 bits, in groups of 32 with a "
                "scale each, which is faster. Its answers are then not quite the policy's: rollout_corr/* in the "
                "metrics say by how much. On the CPU with model.compute_dtype float32 or bfloat16, and "
                "model.batch_invariant.");
    spec.Int("rollout.probe_prompts", &s.probe_prompts,
             "Prompts that are answered and scored before the first step, at most as many as a step has, to show how "
             "the run begins; 0: none. Runs that go on from a checkpoint, or whose prompts servers answer, try none.")
        .AtLeast(0)
        .AtMost(4096);
  }
  spec.Int("rollout.max_num_seqs", &s.max_num_seqs,
           "Samples that are generated at the same time; others follow as these end.")
      .AtLeast(1)
      .AtMost(kMaxBatch);
}

void BindDock(config::Spec& spec, DockSection& s) {
  spec.String(
      "trainer.serve", &s.serve,
      "Serve the run's dock while it runs, at unix:/PATH or HOST:PORT (port 0: any free one), or with `unix` at "
      "a Unix socket of this user; empty: only this process has it.");
  spec.String("trainer.dock", &s.address,
              "Address of a dock that is served elsewhere, unix:/PATH or HOST:PORT, to use instead of one of the run's "
              "own.");
  spec.String("trainer.partition", &s.partition, "Name of the run's partition of the dock, which must be new there.")
      .NotEmpty();
  spec.String("trainer.dock_token_file", &s.token_file,
              "File with the token of the dock, over TCP: that clients must present, or that is presented to it.");
  spec.String("trainer.dock_tls_ca", &s.tls_ca,
              "CA certificates: with trainer.serve clients must present a certificate signed by one, with trainer.dock "
              "they verify the server and turn on TLS.");
  spec.String("trainer.dock_tls_cert", &s.tls_cert, "This side's certificate; with trainer.serve it turns on TLS.");
  spec.String("trainer.dock_tls_key", &s.tls_key, "Key of that certificate.");
  spec.Strings("trainer.external_stages", &s.external_stages,
               "Stages that other processes carry out, such as [reward], on a dock that they can reach.");
  spec.Float("trainer.external_timeout", &s.external_timeout,
             "Seconds in a step that each of them may take before the run ends.")
      .MoreThan(0)
      .AtMost(1e6);
  CheckDock(spec, s);
}

namespace {

void BindExecutor(config::Spec& spec, ExecutorSection& s) {
  using Kind = ExecutorSection::Kind;
  spec.Choice(
      "trainer.executor", &s.kind,
      {{"auto", Kind::kAuto}, {"sequential", Kind::kSequential}, {"concurrent", Kind::kConcurrent}},
      "How the stages of a step are carried out: one after another, or at the same time, each on a thread of its "
      "own, with the same result; auto: one after another unless async_training.steps_ahead is set.");
  spec.Float(
          "trainer.stage_timeout", &s.stage_timeout,
          "Seconds after which a stage that shows no progress, or a step for which no stage has anything to do, ends "
          "the run with an error. For stages that are carried out at the same time.")
      .MoreThan(0);
  spec.Int("trainer.stage_retries", &s.stage_retries,
           "How often a stage that has no state is tried again on the same rows after an error, in a row, before the "
           "run "
           "ends. For stages that are carried out at the same time.")
      .AtLeast(0)
      .AtMost(1000);
}

}  // namespace

void BindTrainer(config::Spec& spec, TrainerSection& s) {
  spec.Int("trainer.total_epochs", &s.total_epochs,
           "How often to go through the training data; 0: as often as total_training_steps asks for, or else once.")
      .AtLeast(0)
      .AtMost(kMaxBatch);
  spec.Int("trainer.total_training_steps", &s.total_training_steps,
           "Steps after which training ends, unless total_epochs ends it before; 0: total_epochs says.")
      .AtLeast(0);
  spec.Float("trainer.ema_decay", &s.ema_decay,
             "Also keep the exponential moving average of the weights, with this much of the old average at each "
             "optimizer step, and save it as checkpoint-ema; 0: no.")
      .AtLeast(0)
      .LessThan(1);
  spec.Int("trainer.test_freq", &s.test_freq,
           "Steps from one validation to the next; there is also one at the end; 0 or -1: no other.")
      .AtLeast(-1);
  spec.Bool("trainer.val_before_train", &s.val_before_train, "Validate before the first step, too.");
  spec.Bool("trainer.val_only", &s.val_only, "Validate the model as it is, and end without training or saving.");
  spec.Int("trainer.val_max_samples", &s.val_max_samples,
           "Samples of the validation data that are used, chosen by the seed of the data; 0 or -1: all.")
      .AtLeast(-1);
  spec.Int("trainer.log_val_generations", &s.log_val_generations, "Validation answers recorded each time.").AtLeast(0);
  spec.String("trainer.stop_when", &s.stop_when,
              "End training once a metric of the validation is reached, such as `val/accuracy >= 0.30`; empty: never.");
  spec.String("trainer.run_dir", &s.run_dir,
              "Folder of the run: new or empty, or that of this run, to go on with it; empty: the next free "
              "runs/RECIPE-NNN.");
  spec.String(
      "trainer.save_freq", &s.save_freq,
      "How often to save everything that the run needs to go on, in steps (`50`) or time (`30min`); also at the "
      "end. 0 or -1: only when the run is told to stop.");
  spec.Int("trainer.max_checkpoints_to_keep", &s.max_checkpoints_to_keep,
           "Checkpoints to keep, the newest, beside the best; 0: all.")
      .AtLeast(0);
  spec.String(
      "trainer.best_metric", &s.best_metric,
      "Metric of the validation, such as `val/accuracy`: whenever it is better than ever, the run is saved, and "
      "this checkpoint is kept; empty: none.");
  spec.Choice("trainer.best_mode", &s.best_is_least, {{"max", false}, {"min", true}},
              "Whether the greatest or the least value of trainer.best_metric is the best.");
  spec.String(
          "trainer.resume_mode", &s.resume_mode,
          "`auto`: go on with the newest checkpoint of trainer.run_dir, if it has one; `disable`: that folder must be "
          "new; `resume_path`: go on from trainer.resume_from_path; otherwise the folder of the checkpoint to go on "
          "from.")
      .NotEmpty();
  spec.String("trainer.resume_from_path", &s.resume_from_path,
              "The checkpoint to go on from, for trainer.resume_mode=resume_path.");
  spec.Float(
          "trainer.max_minutes", &s.max_minutes,
          "Minutes after which the run is saved and ends as if it was interrupted, before a scheduler kills it; 0: no "
          "limit.")
      .AtLeast(0);
  spec.Strings(
      "trainer.profile_steps", &s.profile_steps,
      "Steps, such as [2, 3], of which RUN/profile/step_N.json says what each process did and how much memory it "
      "had, as a trace for Perfetto.");
  spec.Check({"trainer.profile_steps"}, [&s]() -> std::vector<std::string> {
    for (const std::string& step : s.profile_steps) {
      if (int64_t number = 0; !absl::SimpleAtoi(step, &number) || number < 1) {
        return {absl::StrCat("'", EscapeForMessage(step), "' is not the number of a step, which are counted from 1")};
      }
    }
    return {};
  });
  spec.Float(
          "trainer.peak_flops", &s.peak_flops,
          "Floating-point operations per second that perf/mfu is a share of: those of all devices of the run, such as "
          "989e12; 0: those that products of matrices reach when the run begins.")
      .AtLeast(0);
  spec.Check({"trainer.save_freq"}, [&s]() -> std::vector<std::string> {
    const absl::Status parsed = ParseSaveFreq(s.save_freq).status();
    return parsed.ok() ? std::vector<std::string>() : std::vector{std::string(parsed.message())};
  });
  spec.Check({"trainer.resume_mode", "trainer.resume_from_path"}, [&s]() -> std::vector<std::string> {
    if (s.resume_mode != "resume_path" || !s.resume_from_path.empty()) return {};
    return {"resume_path needs trainer.resume_from_path, the folder of a checkpoint"};
  });
  spec.Unused(
      {"trainer.resume_from_path"}, [&s] { return s.resume_mode != "resume_path"; },
      "used only with trainer.resume_mode=resume_path");
  spec.Unused(
      {"trainer.best_mode"}, [&s] { return s.best_metric.empty(); }, "given without trainer.best_metric");
  spec.Check({"trainer.stop_when"}, [&s]() -> std::vector<std::string> {
    const auto rule = ParseStopRule(s.stop_when);
    if (rule.ok()) return {};
    return {std::string(rule.status().message())};
  });
  BindExecutor(spec, s.executor);
  BindDock(spec, s.dock);
}

void BindAsync(config::Spec& spec, RunConfig& c, const std::function<int64_t()>& versions_per_step) {
  AsyncSection& s = c.async;
  spec.Int("async_training.steps_ahead", &s.steps_ahead,
           "Batches of prompts that are answered while earlier ones are trained on. 0: training is synchronous; 1: one "
           "step off. What is answered ahead is in checkpoints.")
      .AtLeast(0)
      .AtMost(64);
  spec.Int("async_training.max_version_lag", &s.max_version_lag,
           "By how many optimizer steps the weights that answered may be older than those that are trained; -1: no "
           "limit but that of steps_ahead.")
      .AtLeast(-1);
  spec.Choice("async_training.stale", &s.stale, {{"send_back", Stale::kSendBack}, {"drop", Stale::kDrop}},
              "What becomes of prompt groups that are older: they are answered anew, or left out.");
  spec.Choice("async_training.weights", &s.weights,
              {{"in_flight", AsyncSection::Weights::kInFlight}, {"wait", AsyncSection::Weights::kWait}},
              "Which answers new weights go into: in_flight, from the next token of all on; wait, those that are begun "
              "after them.");
  spec.Int("rollout.partial_rollout_max_split", &s.partial_rollout_max_split,
           "Partial rollouts: an answer gets at most this share, 1 of so many, of data.max_response_length at a time; "
           "those that are not at their end then are put back, and gone on with by the next weights, the oldest first, "
           "while steps train on what is complete. There are two batches of prompts at least then. 1: answers are not "
           "interrupted.")
      .AtLeast(1)
      .AtMost(64);
  spec.Unused(
      {"async_training.max_version_lag", "async_training.stale", "async_training.weights"},
      [&c] { return !Streams(c); }, "training is synchronous (async_training.steps_ahead)");
  spec.Unused(
      {"async_training.stale"}, [&s] { return s.max_version_lag < 0; },
      "nothing is too old without async_training.max_version_lag");
  for (auto& [stage, size] : c.trainer.executor.dispatch_sizes) {
    spec.Int("trainer.dispatch_size." + stage, &size,
             absl::StrCat("The most samples that the stage ", stage, " takes at a time; 0: all that are ready."))
        .AtLeast(0)
        .AtMost(kMaxBatch);
  }
  spec.Bool("trainer.guarantee_order", &c.trainer.executor.guarantee_order,
            "Each stage of a step waits until all that it reads is there, and takes it in the order of the samples.");
  spec.Bool(
      "trainer.balance_batch", &c.trainer.executor.balance_batch,
      "What a stage takes at a time, of trainer.dispatch_size, are answers whose lengths add up to nearly the same "
      "each time.");
  spec.Check({"trainer.balance_batch", "trainer.guarantee_order"}, [&c]() -> std::vector<std::string> {
    if (!c.trainer.executor.balance_batch || !c.trainer.executor.guarantee_order) return {};
    return {"samples that are chosen by their lengths are in no order: remove one of them"};
  });
  spec.Check({"trainer.guarantee_order", "async_training.steps_ahead", "rollout.partial_rollout_max_split"},
             [&c]() -> std::vector<std::string> {
               if (!c.trainer.executor.guarantee_order || !Streams(c)) return {};
               return {"a step takes what is ready first: remove the first, or the others"};
             });
  spec.Check({"async_training.max_version_lag", "async_training.steps_ahead"},
             [&s, versions_per_step]() -> std::vector<std::string> {
               const int64_t least = versions_per_step();
               if (s.steps_ahead == 0 || s.max_version_lag < 0 || s.max_version_lag >= least) return {};
               return {absl::StrCat("while a step is answered, the one before it takes ", least,
                                    " optimizer steps, so "
                                    "that every answer would be too old: at least ",
                                    least, " is possible")};
             });
  spec.Check({"async_training.steps_ahead", "rollout.partial_rollout_max_split", "trainer.serve", "trainer.dock"},
             [&c]() -> std::vector<std::string> {
               if (!Streams(c) || !c.trainer.dock.shared()) return {};
               return {
                   "what is answered ahead of a step is saved with the run, and so must be on a dock of its own: "
                   "remove one of them"};
             });
  spec.Check({"async_training.steps_ahead", "trainer.executor"}, [&c]() -> std::vector<std::string> {
    if (c.async.steps_ahead == 0 || RunsTogether(c)) return {};
    return {"nothing is answered while it trains if stages run one after another: set trainer.executor to auto"};
  });
}

void BindEvaluations(config::Spec& spec, TrainerSection& s, const std::vector<std::string>& names) {
  spec.Strings("trainer.evaluations", &s.evaluations,
               absl::StrCat("What validations measure, before training, every trainer.test_freq steps and at the end: ",
                            "any of ", absl::StrJoin(names, ", "), "."));
  spec.Check({"trainer.evaluations"}, [&s, names]() -> std::vector<std::string> {
    std::vector<std::string> wrong;
    for (const std::string& name : s.evaluations) {
      if (absl::c_linear_search(names, name)) continue;
      wrong.push_back(absl::StrCat("\"", EscapeForMessage(name), "\" is not measured here; there are ",
                                   absl::StrJoin(names, ", ")));
    }
    return wrong;
  });
}

bool Evaluates(const TrainerSection& section, absl::string_view name) {
  return absl::c_linear_search(section.evaluations, name);
}

void BindRun(config::Spec& spec, RunConfig& c) {
  spec.Choice("recipe", &c.recipe, {{c.recipe, c.recipe}}, "The recipe.");
  spec.Int("seed", &c.seed, "Seed of everything random: weights, data order, sampling.").AtLeast(0);
  spec.String("device", &c.device, "cpu, cuda, or cuda:N.").NotEmpty();
  spec.Check({"device"}, [&c]() -> std::vector<std::string> {
    const absl::Status parsed = model::ParseDevice(c.device).status();
    return parsed.ok() ? std::vector<std::string>() : std::vector{std::string(parsed.message())};
  });
  spec.Int("threads", &c.threads,
           "Threads that work on different samples in parallel; what is computed does not depend on it; 0: one per "
           "core, "
           "or one if the device is a GPU.")
      .AtLeast(0)
      .AtMost(1024);
  spec.Int("intra_op_threads", &c.intra_op_threads,
           "Threads per operation on the CPU, which may change the last bits. More than one pays off for large models "
           "on "
           "an idle machine.")
      .AtLeast(1)
      .AtMost(1024);
  BindModel(spec, c.model);
  data::BindData(spec, c.data);
  spec.Check({"data.keep"}, [&c]() -> std::vector<std::string> {
    for (const std::string& column : c.data.columns.keep) {
      if (IsStageColumn(column)) return {"stages have a column of the name " + column + " already"};
    }
    return {};
  });
  reward::BindReward(spec, c.reward);
  reward::BindExternalReward(spec, c.external_reward);
  BindTrainer(spec, c.trainer);
  BindResources(spec, c.resources);
}

void BindFilterGroups(config::Spec& spec, RunConfig& c) {
  FilterGroupsSection& s = c.filter_groups;
  spec.Bool("algorithm.filter_groups.enable", &s.enable,
            "Train only on prompts whose answers have different rewards, and answer more prompts until there are "
            "data.train_batch_size of them (dynamic sampling).");
  spec.Choice("algorithm.filter_groups.metric", &s.with_penalty, {{"score", false}, {"reward", true}},
              "The rewards that are compared: before or after what reward.overlong_buffer takes off.");
  spec.Int("algorithm.filter_groups.max_num_gen_batches", &s.max_num_gen_batches,
           "Rounds of data.gen_batch_size prompts in a step before the run ends with an error; 0: no limit.")
      .AtLeast(0)
      .AtMost(kMaxBatch);
  spec.Int("data.gen_batch_size", &s.gen_batch_size,
           "Prompts that are answered in a round of algorithm.filter_groups; 0: data.train_batch_size.")
      .AtLeast(0)
      .AtMost(kMaxBatch);
  spec.Unused(
      {"algorithm.filter_groups.metric", "algorithm.filter_groups.max_num_gen_batches", "data.gen_batch_size"},
      [&s] { return !s.enable; }, "every prompt is trained on (algorithm.filter_groups.enable)");
  spec.Check(
      {"algorithm.filter_groups.max_num_gen_batches", "data.gen_batch_size", "data.train_batch_size"},
      [&c]() -> std::vector<std::string> {
        const int64_t most = c.filter_groups.max_num_gen_batches * DrawnAtOnce(c);
        if (!c.filter_groups.enable || most == 0 || most >= c.data.train_batch_size) return {};
        return {absl::StrCat(c.filter_groups.max_num_gen_batches, " rounds answer ", most, " prompts, less than the ",
                             c.data.train_batch_size, " of a batch: raise one of the first two")};
      });
  spec.Check({"algorithm.filter_groups.enable", "trainer.external_stages"}, [&c]() -> std::vector<std::string> {
    const std::vector<std::string>& external = c.trainer.dock.external_stages;
    if (!c.filter_groups.enable || !absl::c_linear_search(external, "reward")) return {};
    return {
        "prompts are filtered by their rewards before they are on the partition that other processes know: score them "
        "in this process, for example with reward.python or reward.program"};
  });
}

int64_t DrawnAtOnce(const RunConfig& config) {
  const FilterGroupsSection& filter = config.filter_groups;
  return filter.enable && filter.gen_batch_size > 0 ? filter.gen_batch_size : config.data.train_batch_size;
}

std::vector<std::string> RewardColumns(const RunConfig& config) {
  if (!config.external_reward.used()) return {};
  std::vector<std::string> columns = config.data.columns.keep;
  columns.emplace_back(kMessages);
  return columns;
}

void BindOptim(config::Spec& spec, const std::string& prefix, const RunConfig& run, OptimSection& s,
               const ModelOptions* of) {
  const ModelOptions& model = of != nullptr ? *of : run.model;
  s.key = prefix;
  s.zero_key = absl::StrCat(absl::StripSuffix(prefix, "optim"), "zero_stage");
  spec.Float(prefix + ".lr", &s.lr, "Peak learning rate of AdamW.").MoreThan(0);
  spec.Float(prefix + ".lora_lr", &s.lora_lr, "Peak learning rate of adapters; 0: as lr.").AtLeast(0);
  spec.Float(prefix + ".head_lr", &s.head_lr,
             "Peak learning rate of a value head, or of a token head that is not the embedding; 0: as lr.")
      .AtLeast(0);
  spec.Float(prefix + ".beta1", &s.beta1, "AdamW's decay of the first moment.").AtLeast(0).LessThan(1);
  spec.Float(prefix + ".beta2", &s.beta2, "AdamW's decay of the second moment.").AtLeast(0).LessThan(1);
  spec.Float(prefix + ".weight_decay", &s.weight_decay, "Decoupled weight decay of matrices.").AtLeast(0);
  spec.Float(prefix + ".clip_grad", &s.clip_grad, "Gradients are clipped to this global norm; 0: no clipping.")
      .AtLeast(0);
  BindSchedule(spec, prefix, s.lr_schedule);
  spec.Choice(prefix + ".moment_dtype", &s.moment_dtype,
              {{"float32", MomentType::kFloat32}, {"int8", MomentType::kInt8}},
              "How AdamW's moments are stored; int8 takes a quarter of the memory and more time.");
  spec.Bool(
      prefix + ".offload", &s.offload,
      "With a model on a GPU: AdamW's moments, and a copy of the weights in float32, are in the memory of the CPU, "
      "and steps are taken there. With model.param_dtype bfloat16, weights are then rounded to the nearest.");
  spec.Check({prefix + ".offload", "device"}, [&s, &run]() -> std::vector<std::string> {
    if (!s.offload || run.device != "cpu") return {};
    return {"the model is on the CPU, and so is the optimizer's state: remove it, or set device to cuda"};
  });
  spec.Int(prefix + ".max_skipped_steps", &s.max_skipped_steps,
           "Optimizer steps in a row that are skipped where gradients are not finite, before the run ends with an "
           "error.")
      .AtLeast(0);
  spec.Float(prefix + ".loss_scale", &s.loss_scale.initial,
             "With model.compute_dtype float16: what the loss is first multiplied by, so that small gradients do not "
             "become zero. Gradients that are not finite skip the step and halve it.")
      .AtLeast(1)
      .AtMost(kMaxLossScale);
  spec.Float(prefix + ".min_loss_scale", &s.loss_scale.minimum,
             "Where it is not halved any more: if gradients are not finite then, the step is a skipped one.")
      .MoreThan(0)
      .AtMost(kMaxLossScale);
  spec.Int(prefix + ".loss_scale_growth_interval", &s.loss_scale.growth_interval,
           "Steps in a row with finite gradients after which it doubles.")
      .AtLeast(1);
  spec.Check({prefix + ".loss_scale", prefix + ".min_loss_scale"}, [&s]() -> std::vector<std::string> {
    if (s.loss_scale.minimum <= s.loss_scale.initial) return {};
    return {"the smallest scale must be at most the first"};
  });
  spec.Int(
          s.zero_key, &s.zero_stage,
          "Where several processes train together: what of the model's state each keeps a part of only. 0: nothing; 1: "
          "the optimizer's state; 2: and gradients; 3: and weights (ZeRO).")
      .AtLeast(0)
      .AtMost(3);
  spec.Unused(
      {prefix + ".loss_scale", prefix + ".min_loss_scale", prefix + ".loss_scale_growth_interval"},
      [&model] { return model.compute_dtype != at::kHalf; },
      "given for a loss that is not computed in float16 (model.compute_dtype)");
  spec.Unused(
      {prefix + ".lora_lr"}, [&model] { return model.lora_rank == 0; }, "given without adapters (model.lora_rank = 0)");
}

absl::Status CheckOptim(const OptimSection& section, const model::Decoder& decoder) {
  const model::ModelConfig& model = decoder.config();
  const char* const head = model.head == model::Head::kValue ? "score" : "lm_head";
  const bool trained = model.has_own_head() && (!decoder.lora() || decoder.lora()->saves(head));
  if (section.head_lr == 0 || trained) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      section.key, ".head_lr = ", section.head_lr, ": ",
      model.has_own_head()
          ? "beside adapters (model.lora_rank), the head is not trained: model.modules_to_save does not name it"
          : "the model's head is its embedding (tie_word_embeddings), whose learning rate is lr",
      "; remove the key"));
}

}  // namespace tdock::trainer
