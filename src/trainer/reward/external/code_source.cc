#include "trainer/reward/external/code_source.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/base/workers.h"
#include "trainer/reward/external/code_tests.h"

namespace tdock::reward {
namespace {

using Json = nlohmann::json;

constexpr int kDeepestResult = 128;

// A number that the code under test cannot guess.
std::string Secret() {
  std::random_device source;
  return absl::StrCat(absl::Hex(source(), absl::kZeroPad8), absl::Hex(source(), absl::kZeroPad8),
                      absl::Hex(source(), absl::kZeroPad8), absl::Hex(source(), absl::kZeroPad8));
}

// The end of its standard error, where Python names the mistake.
std::string LastWords(const SandboxRun& run) {
  constexpr size_t kMaxShown = 300;
  absl::string_view words = absl::StripTrailingAsciiWhitespace(run.words);
  if (words.size() > kMaxShown) words.remove_prefix(words.size() - kMaxShown);
  return EscapeForMessage(words, kMaxShown);
}

// One test as the driver wants it, and what is right.
struct Step {
  Json task;
  std::string input;
  std::function<bool(const SandboxRun&)> passed;
};

// The value that the driver reports; discarded if it reports none.
Json Reported(const SandboxRun& run, const char* name) {
  const auto object = ParseJsonObject(run.output, kDeepestResult);
  if (!object.ok() || !object->contains(name)) return Json(Json::value_t::discarded);
  return object->at(name);
}

Step OutputStep(const CodeTest& test, const std::string& program) {
  return {.task = {{"mode", "stdin"}, {"code", program}},
          .input = test.input,
          .passed = [output = test.output](const SandboxRun& run) { return SameOutput(run.output, output); }};
}

Step FunctionStep(const CodeTest& test, const std::string& program) {
  return {.task = {{"mode", "function"}, {"code", program}, {"name", test.function}, {"arguments", test.arguments}},
          .input = {},
          .passed = [expected = test.expected](const SandboxRun& run) {
            const Json value = Reported(run, "value");
            return !value.is_discarded() && SameResult(value, expected);
          }};
}

Step AssertionStep(const Json& planned, const std::string& program) {
  Step step{.task = {{"mode", "assertion"}, {"code", program}, {"prelude", planned.value("prelude", "")}},
            .input = {},
            .passed = {}};
  if (planned.contains("expression") && planned.contains("expected")) {
    step.task["expression"] = planned["expression"];
    step.passed = [expected = planned["expected"]](const SandboxRun& run) {
      const Json value = Reported(run, "value");
      return !value.is_discarded() && SameValue(value, expected);
    };
    return step;
  }
  const std::string secret = Secret();
  step.task["statement"] = planned.value("statement", "");
  step.task["secret"] = secret;
  step.passed = [secret](const SandboxRun& run) { return Reported(run, "passed") == secret; };
  return step;
}

class CodeSource final : public ScoreSource {
 public:
  CodeSource(CodeOptions options, Sandbox sandbox) : options_(std::move(options)), sandbox_(std::move(sandbox)) {}

  const std::string& name() const override { return options_.name; }

  absl::Status Score(std::span<const Answer> answers, const StopCheck& check_stop, const SourceSink& sink) override {
    std::atomic<size_t> next = 0;
    Mutex mu;
    absl::Status failed;
    const auto serve = [&] {
      for (size_t i = next++; i < answers.size(); i = next++) {
        absl::StatusOr<SourceScore> score = ScoreOne(answers[i], check_stop);
        if (absl::Status stop = check_stop(); !stop.ok()) {
          next = answers.size();
          MutexLock lock(mu);
          failed = std::move(stop);
          return;
        }
        sink(i, std::move(score));
      }
    };
    const int threads = static_cast<int>(std::min(answers.size(), static_cast<size_t>(options_.processes)));
    if (threads > 0) Workers(threads).Run(threads, [&](int) { serve(); });
    return failed;
  }

 private:
  absl::StatusOr<SourceScore> ScoreOne(const Answer& answer, const StopCheck& check_stop) const {
    if (!options_.sources.Contains(answer.source)) return SourceScore{};
    Clock& clock = Clock::Real();
    const absl::Time begun = clock.Now();
    const Patience patience{.clock = clock, .deadline = begun + options_.timeout, .check_stop = check_stop};
    SourceScore score{.score = 0.0F};
    TDOCK_ASSIGN_OR_RETURN(const absl::StatusOr<std::vector<Step>> steps, StepsOf(answer, patience));
    if (!steps.ok()) {
      score.undecided = true;
      score.message = std::string(steps.status().message());
      return score;
    }
    size_t passed = 0;
    for (size_t i = 0; i < steps->size() && clock.Now() < patience.deadline; ++i) {
      TDOCK_ASSIGN_OR_RETURN(const SandboxRun run, RunStep((*steps)[i], patience));
      const bool right = run.in_time && !run.too_much && (*steps)[i].passed(run);
      passed += right ? 1 : 0;
      if (right || !score.message.empty()) continue;
      score.message = absl::StrCat("test ", i + 1, " of ", steps->size(), ": ", WhyNot(run));
      if (options_.all_or_nothing) break;
    }
    const double share = static_cast<double>(passed) / static_cast<double>(steps->size());
    score.score = static_cast<float>(options_.all_or_nothing ? std::floor(share) : share);
    score.seconds = absl::ToDoubleSeconds(clock.Now() - begun);
    return score;
  }

  static std::string WhyNot(const SandboxRun& run) {
    if (run.too_much) return "it wrote too much";
    if (!run.in_time) return "it took too long";
    if (run.exit_code != 0) return absl::StrCat("exit code ", run.exit_code, ": ", LastWords(run));
    return "the result is wrong";
  }

  absl::StatusOr<SandboxRun> RunStep(const Step& step, const Patience& patience) const {
    const Patience own{.clock = patience.clock,
                       .deadline = std::min(patience.deadline, patience.clock.Now() + options_.test_timeout),
                       .check_stop = patience.check_stop};
    TDOCK_ASSIGN_OR_RETURN(SandboxRun run, sandbox_.Run(JsonText(step.task), step.input, own));
    if (!run.begun && run.in_time) {
      return absl::UnavailableError(
          absl::StrCat("the sandbox did not start (exit code ", run.exit_code, "): ", LastWords(run)));
    }
    return run;
  }

  // The inner status says what is wrong with the truth, the outer one what is wrong here.
  absl::StatusOr<absl::StatusOr<std::vector<Step>>> StepsOf(const Answer& answer, const Patience& patience) const {
    const absl::StatusOr<std::vector<CodeTest>> tests = ParseCodeTests(answer.truth);
    if (!tests.ok()) return absl::StatusOr<std::vector<Step>>(tests.status());
    const std::string program = ProgramOf(answer.response);
    std::vector<Step> steps;
    for (const CodeTest& test : *tests) {
      if (test.kind == CodeTest::Kind::kOutput) steps.push_back(OutputStep(test, program));
      if (test.kind == CodeTest::Kind::kFunction) steps.push_back(FunctionStep(test, program));
      if (test.kind != CodeTest::Kind::kAssertions) continue;
      // Python reads the assertions, in a sandbox that has no code under test.
      const Step plan{.task = {{"mode", "plan"}, {"tests", test.assertions}}, .input = {}, .passed = {}};
      TDOCK_ASSIGN_OR_RETURN(const SandboxRun run, RunStep(plan, patience));
      if (!run.in_time || run.too_much) {
        return absl::DeadlineExceededError("reading the assertions of the truth took too long, or too much output");
      }
      const absl::StatusOr<Json> planned =
          ParseJsonObject(absl::StrCat("{\"tests\":", run.output, "}"), kDeepestResult);
      if (!planned.ok() || !planned->at("tests").is_array()) {
        return absl::StatusOr<std::vector<Step>>(
            absl::InvalidArgumentError(absl::StrCat("the assertions are not valid Python: ", LastWords(run))));
      }
      for (const Json& one : planned->at("tests")) steps.push_back(AssertionStep(one, program));
    }
    return absl::StatusOr<std::vector<Step>>(std::move(steps));
  }

  const CodeOptions options_;
  const Sandbox sandbox_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ScoreSource>> MakeCodeSource(const CodeOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(Sandbox sandbox, Sandbox::Make(options.sandbox));
  return std::make_unique<CodeSource>(options, std::move(sandbox));
}

}  // namespace tdock::reward
