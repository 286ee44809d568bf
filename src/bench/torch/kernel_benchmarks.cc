#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "bench/torch/model_benchmarks.h"
#include "bench/torch/subjects.h"
#include "core/base/huge_pages.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/limits.h"
#include "kernels/log_probs.h"
#include "kernels/packed_matrix.h"
#include "kernels/parallel.h"
#include "kernels/products.h"
#include "trainer/stages/guard.h"

namespace tdock::bench {
namespace {

using Body = std::function<void()>;

// What a run of a kernel does.
struct Work {
  Body body;
  double bytes = 0;  // that it reads and writes at least
  double operations = 0;
};

// Threads as an engine has them, and memory to measure how fast it is read.
class Bench {
 public:
  explicit Bench(const Settings& settings)
      : clock_(settings.clock),
        workers_(ShareSamples(settings.threads, settings.threads)),
        memory_(size_t{settings.quick ? 16U : 512U} << 18, 1.0F) {}

  double Seconds(const Body& body) const {
    double seconds = 0;
    kernels::WithTeam(*workers_, [&] {
      const absl::Time begun = clock_.Now();
      body();
      seconds = absl::ToDoubleSeconds(clock_.Now() - begun);
    });
    return seconds;
  }

  double BytesPerSecond() const {
    constexpr int64_t kPiece = int64_t{1} << 18;
    const auto size = static_cast<int64_t>(memory_.size());
    const double seconds = Seconds([&] {
      kernels::ParallelFor(size / kPiece, 1, [&](int64_t begin, int64_t end) {
        volatile float sum = kernels::Sum(memory_.data() + begin * kPiece, (end - begin) * kPiece);
        static_cast<void>(sum);
      });
    });
    return static_cast<double>(size) * sizeof(float) / seconds;
  }

  double OperationsPerSecond() const {
    const int64_t pieces = 4 * workers_->threads();
    std::vector<int64_t> operations(static_cast<size_t>(pieces));
    const double seconds = Seconds([&] {
      kernels::ParallelFor(pieces, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) operations[static_cast<size_t>(i)] = kernels::MultiplyAndAdd();
      });
    });
    return static_cast<double>(operations[0] * pieces) / seconds;
  }

  // The limits are measured right before, so that another load on the machine slows both.
  Figure Run(const Work& work, bool counts_operations) const {
    const double bandwidth = BytesPerSecond(), peak = OperationsPerSecond();
    const double seconds = Seconds(work.body);
    const double bytes = work.bytes / seconds, operations = work.operations / seconds;
    const double least = std::max(work.bytes / bandwidth, work.operations / peak);
    return {(counts_operations ? operations : bytes) / 1e9,
            {{"GB/s", bytes / 1e9}, {"GFLOP/s", operations / 1e9}, {"share of roofline", least / seconds}}};
  }

 private:
  Clock& clock_;
  const std::unique_ptr<Workers> workers_;
  const std::vector<float, HugePageAllocator<float>> memory_;
};

double Bytes(const at::Tensor& tensor) { return static_cast<double>(tensor.nbytes()); }

// The linear layers of the Llama of 95 million parameters, one after the other, as a pass of `rows` tokens does.
Work Products(bool quick, at::ScalarType dtype, kernels::PackedFormat format, int64_t rows) {
  constexpr int64_t kSizes[][2] = {{1280, 768}, {768, 768}, {4608, 768}, {768, 2304}};
  struct Layers {
    std::vector<kernels::PackedMatrix> weights;
    at::Tensor narrow, wide;
  };
  const auto layers = std::make_shared<Layers>();
  Work work;
  for (int layer = 0; layer < (quick ? 1 : 12); ++layer) {
    for (const auto& [outputs, inputs] : kSizes) layers->weights.emplace_back(at::randn({outputs, inputs}), format);
  }
  layers->narrow = at::randn({rows, 768}).to(dtype);
  layers->wide = at::randn({rows, 2304}).to(dtype);
  for (const kernels::PackedMatrix& weight : layers->weights) {
    const auto numbers = static_cast<double>(rows * (weight.inputs() + weight.outputs()));
    work.bytes += static_cast<double>(weight.bytes()) + numbers * static_cast<double>(at::elementSize(dtype));
    work.operations += 2.0 * static_cast<double>(rows * weight.inputs() * weight.outputs());
  }
  work.body = [layers] {
    for (const kernels::PackedMatrix& weight : layers->weights) {
      kernels::Product(weight.inputs() == 768 ? layers->narrow : layers->wide, weight, {});
    }
  };
  return work;
}

constexpr kernels::AttentionShape kHeads{.heads = 12, .kv_heads = 4, .head_dim = 64};
constexpr int64_t kPageOfHead = kernels::kPageTokens * kHeads.head_dim, kPage = kPageOfHead * kHeads.kv_heads;

struct Attended {
  std::vector<at::Tensor> keys, values;  // of each layer, in pages
  std::vector<int32_t> pages;            // of all sequences
  at::Tensor queries, fresh, output;
  std::vector<kernels::AttentionPart> parts;
};

template <class T>
void Attend(const Attended& attended) {
  const kernels::PagedAttention attention(kHeads, 0, attended.parts);
  const auto rows = [](const at::Tensor& x) {
    return kernels::TokenRows<T>{
        .data = x.template const_data_ptr<T>(), .token_stride = x.stride(0), .head_stride = x.stride(1)};
  };
  const kernels::TokenRows<T> queries = rows(attended.queries), fresh = rows(attended.fresh);
  for (size_t layer = 0; layer < attended.keys.size(); ++layer) {
    const kernels::Pages<T> pages{.keys = attended.keys[layer].template data_ptr<T>(),
                                  .values = attended.values[layer].template data_ptr<T>(),
                                  .page_stride = kPage,
                                  .head_stride = kPageOfHead};
    attention.Run(pages, queries, fresh, fresh, attended.output.template data_ptr<T>());
  }
}

// The last `count` tokens of each of `rows` sequences attend to all of `length`, in each layer of that Llama.
template <class T>
Work Attention(bool quick, int64_t rows, int64_t length, int64_t count) {
  const auto attended = std::make_shared<Attended>();
  const int64_t layers = quick ? 1 : 12, pages = (length + kernels::kPageTokens - 1) / kernels::kPageTokens;
  const auto random = [](at::IntArrayRef sizes) { return at::randn(sizes).to(c10::CppTypeToScalarType<T>::value); };
  for (int64_t layer = 0; layer < layers; ++layer) {
    attended->keys.push_back(random({rows * pages, kPage}));
    attended->values.push_back(random({rows * pages, kPage}));
  }
  for (int64_t i = 0; i < rows * pages; ++i) attended->pages.push_back(static_cast<int32_t>(i));
  attended->queries = random({rows * count, kHeads.heads, kHeads.head_dim});
  attended->fresh = random({rows * count, kHeads.kv_heads, kHeads.head_dim});
  attended->output = at::empty_like(attended->queries);
  for (int64_t row = 0; row < rows; ++row) {
    attended->parts.push_back({.pages = attended->pages.data() + row * pages,
                               .begin = length - count,
                               .count = count,
                               .first_query = row * count,
                               .fresh_begin = length - count,
                               .first_fresh = row * count});
  }
  const double seen = static_cast<double>(rows * count * (2 * length - count + 1)) / 2;
  const double cached = 2 * static_cast<double>(rows * length * kHeads.kv_heads * kHeads.head_dim) * sizeof(T);
  const double passed = 2 * Bytes(attended->queries) + 2 * Bytes(attended->fresh);
  return {.body = [attended] { Attend<T>(*attended); },
          .bytes = static_cast<double>(layers) * (cached + passed),
          .operations = static_cast<double>(layers) * seen * 4 * static_cast<double>(kHeads.heads * kHeads.head_dim)};
}

// What passes once over more numbers than caches hold; `accesses` says how often a number is read or written.
Work OnePass(at::Tensor x, double accesses, double operations_each, std::function<void(const at::Tensor&)> kernel) {
  const double bytes = accesses * Bytes(x), operations = operations_each * static_cast<double>(x.numel());
  return {[x = std::move(x), kernel = std::move(kernel)] { kernel(x); }, bytes, operations};
}

Work Norm(bool quick, at::ScalarType dtype) {
  const at::Tensor weight = at::ones({768}).to(dtype);
  return OnePass(at::randn({quick ? 64 : 65'536, 768}).to(dtype), 2, 4,
                 [weight](const at::Tensor& x) { kernels::RmsNorm(x, weight, 1e-5); });
}

Work Rotation(bool quick, at::ScalarType dtype) {
  const int64_t tokens = quick ? 64 : 65'536;
  const at::Tensor angles = at::randn({1, tokens, 1, 64});
  return OnePass(at::randn({1, tokens, 12, 64}).to(dtype), 2, 3,
                 [cos = at::cos(angles), sin = at::sin(angles)](const at::Tensor& x) { kernels::Rotate(x, cos, sin); });
}

Work Gate(bool quick, at::ScalarType dtype) {
  return OnePass(at::randn({quick ? 64 : 16'384, 4608}).to(dtype), 1.5, 4,
                 [](const at::Tensor& x) { kernels::Gate(kernels::Activation::kSilu, x); });
}

Work Sampling(bool quick, at::ScalarType dtype) {
  const int64_t rows = quick ? 16 : 8192;
  return OnePass(at::randn({rows, 8192}).to(dtype), 1, 8,
                 [uniforms = std::vector<double>(static_cast<size_t>(rows), 0.5)](const at::Tensor& logits) {
                   kernels::SampleTokens(logits, 1.0, uniforms);
                 });
}

Work LogProbs(bool quick, at::ScalarType dtype) {
  const int64_t rows = quick ? 16 : 8192;
  return OnePass(at::randn({rows, 8192}).to(dtype), 1, 8,
                 [targets = at::zeros({rows}, at::kLong)](const at::Tensor& logits) {
                   kernels::TokenLogProbs(logits, targets, 1.0);
                 });
}

using MakeWork = std::function<Work(bool quick)>;

Benchmark OfKernel(const std::string& name, bool counts_operations, const MakeWork& make) {
  const auto prepare = [counts_operations, make](const Settings& settings) -> absl::StatusOr<Prepared> {
    const auto bench = std::make_shared<Bench>(settings);
    const auto work = std::make_shared<Work>(make(settings.quick));
    return Prepared{.run = [=] {
      return trainer::Guarded([&] { return absl::StatusOr<Figure>(bench->Run(*work, counts_operations)); });
    }};
  };
  return {
      .name = absl::StrCat("kernels/", name),
      .unit = counts_operations ? "GFLOP/s" : "GB/s",
      .better = Better::kHigher,
      .prepare = [prepare](const Settings& settings) { return trainer::Guarded([&] { return prepare(settings); }); }};
}

// The same products with other instructions than those that this processor uses, which are the reference.
Benchmark OfInstructions(const std::string& others, const std::string& weights, kernels::PackedFormat format) {
  const std::string chosen = kernels::Instructions();
  const auto prepare = [=](const Settings& settings) -> absl::StatusOr<Prepared> {
    const auto bench = std::make_shared<Bench>(settings);
    const auto timed = [=, quick = settings.quick](const std::string& instructions) -> absl::StatusOr<TimedRun> {
      const absl::Cleanup restore = [=] { kernels::UseInstructions(chosen).IgnoreError(); };
      TDOCK_RETURN_IF_ERROR(kernels::UseInstructions(instructions));
      const auto dtype = format == kernels::PackedFormat::kFloat ? at::kFloat : at::kBFloat16;
      const auto work = std::make_shared<Work>(Products(quick, dtype, format, 64));
      const auto run = [=]() -> absl::StatusOr<Figure> {
        const absl::Cleanup back = [=] { kernels::UseInstructions(chosen).IgnoreError(); };
        TDOCK_RETURN_IF_ERROR(kernels::UseInstructions(instructions));
        return Figure(work->operations / bench->Seconds(work->body) / 1e9);
      };
      return [=] { return trainer::Guarded(run); };
    };
    TDOCK_ASSIGN_OR_RETURN(const TimedRun run, timed(others));
    TDOCK_ASSIGN_OR_RETURN(const TimedRun reference, timed(chosen));
    return Prepared{.run = run, .reference = reference};
  };
  return {
      .name = absl::StrCat("kernels/choice/instructions=", others, "/weights=", weights),
      .unit = "GFLOP/s",
      .better = Better::kHigher,
      .of = chosen,
      .prepare = [prepare](const Settings& settings) { return trainer::Guarded([&] { return prepare(settings); }); }};
}

Benchmark OfMachine(const std::string& name, const std::string& unit, double (Bench::*measure)() const) {
  return {.name = absl::StrCat("kernels/", name),
          .unit = unit,
          .better = Better::kHigher,
          .prepare = [measure](const Settings& settings) -> absl::StatusOr<Prepared> {
            return Prepared{.run = [measure, bench = std::make_shared<Bench>(settings)] {
              return absl::StatusOr<Figure>(((*bench).*measure)() / 1e9);
            }};
          }};
}

}  // namespace

std::vector<Benchmark> KernelBenchmarks() {
  std::vector<Benchmark> all = {OfMachine("memory", "GB/s", &Bench::BytesPerSecond),
                                OfMachine("arithmetic", "GFLOP/s", &Bench::OperationsPerSecond)};
  const std::pair<std::string, kernels::PackedFormat> formats[] = {{"float32", kernels::PackedFormat::kFloat},
                                                                   {"bfloat16", kernels::PackedFormat::kBFloat16},
                                                                   {"int8", kernels::PackedFormat::kInt8}};
  for (const auto& [weights, format] : formats) {
    const auto dtype = format == kernels::PackedFormat::kFloat ? at::kFloat : at::kBFloat16;
    for (const int64_t rows : {1, 16, 64, 512}) {
      all.push_back(OfKernel(absl::StrCat("product/rows=", rows, "/weights=", weights), true,
                             [=, format = format](bool quick) { return Products(quick, dtype, format, rows); }));
    }
    for (const std::string& others : kernels::AllInstructions()) {
      if (others != kernels::Instructions()) all.push_back(OfInstructions(others, weights, format));
    }
  }
  const auto attention = [&](const std::string& what, int64_t rows, int64_t length, int64_t count) {
    all.push_back(OfKernel(absl::StrCat("attention/", what, "/dtype=float32"), true,
                           [=](bool quick) { return Attention<float>(quick, rows, length, count); }));
    all.push_back(OfKernel(absl::StrCat("attention/", what, "/dtype=bfloat16"), true,
                           [=](bool quick) { return Attention<c10::BFloat16>(quick, rows, length, count); }));
  };
  attention("decode", 64, 256, 1);
  attention("prefill", 1, 512, 512);
  const std::pair<std::string, Work (*)(bool, at::ScalarType)> passes[] = {
      {"rms_norm", Norm}, {"rotation", Rotation}, {"gate", Gate}, {"sampling", Sampling}, {"log_probs", LogProbs}};
  for (const auto& [name, make] : passes) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      all.push_back(OfKernel(absl::StrCat(name, dtype == at::kFloat ? "/dtype=float32" : "/dtype=bfloat16"), false,
                             [make = make, dtype](bool quick) { return make(quick, dtype); }));
    }
  }
  return all;
}

}  // namespace tdock::bench
