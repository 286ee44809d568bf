#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "bench/torch/model_benchmarks.h"
#include "bench/torch/subjects.h"
#include "model/decoder/device.h"
#include "trainer/stages/guard.h"
#include "trainer/stages/policy.h"

namespace tdock::bench {
namespace {

// Log-probabilities of 8 texts of 256 random tokens under a Llama of 95 million parameters, as for old policies.
class LlamaForward {
 public:
  LlamaForward(at::ScalarType compute, bool batch_invariant, const Settings& settings)
      : clock_(settings.clock),
        decoder_(MakeLlama95m(at::kCPU)),
        workers_(ShareSamples(settings.threads, kTexts)),
        length_(settings.quick ? 16 : 256) {
    decoder_.SetComputeType(compute);
    decoder_.SetBatchInvariant(batch_invariant);
    for (int64_t text = 0; text < kTexts; ++text) {
      texts_.push_back(RandomTokens(decoder_, length_ + 1, static_cast<uint64_t>(text)));
    }
    for (const std::vector<int32_t>& text : texts_) {
      samples_.push_back({std::span(text).first(1), std::span(text).subspan(1)});
    }
  }

  absl::StatusOr<double> TokensPerSecond() {
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock_, [&] {
                             trainer::LogProbs(decoder_, samples_, {.workers = *workers_, .max_row_tokens = length_});
                             return absl::OkStatus();
                           }));
    return static_cast<double>(kTexts * length_) / seconds;
  }

 private:
  static constexpr int64_t kTexts = 8;

  Clock& clock_;
  model::Decoder decoder_;
  const std::unique_ptr<Workers> workers_;
  const int64_t length_;
  std::vector<std::vector<int32_t>> texts_;
  std::vector<trainer::Sequence> samples_;
};

Benchmark OfBatchInvariantMode(const std::string& dtype, at::ScalarType compute) {
  const auto prepare = [compute](const Settings& settings) -> absl::StatusOr<Prepared> {
    TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(settings.device));
    if (!device.is_cpu()) return absl::InvalidArgumentError("batch-invariant mode is for the CPU");
    const auto invariant = std::make_shared<LlamaForward>(compute, true, settings);
    const auto fast = std::make_shared<LlamaForward>(compute, false, settings);
    return Prepared{.run = [invariant] { return trainer::Guarded([&] { return invariant->TokensPerSecond(); }); },
                    .reference = [fast] { return trainer::Guarded([&] { return fast->TokensPerSecond(); }); }};
  };
  return {
      .name = "forward/batch_invariant/dtype=" + dtype,
      .unit = "tokens/s",
      .better = Better::kHigher,
      .of = "libtorch's products",
      .prepare = [prepare](const Settings& settings) { return trainer::Guarded([&] { return prepare(settings); }); }};
}

}  // namespace

std::vector<Benchmark> ForwardBenchmarks() {
  return {OfBatchInvariantMode("float32", at::kFloat), OfBatchInvariantMode("bfloat16", at::kBFloat16)};
}

}  // namespace tdock::bench
