#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "bench/torch/model_benchmarks.h"
#include "bench/torch/peak_memory.h"
#include "bench/torch/subjects.h"
#include "core/base/process_memory.h"
#include "model/decoder/checkpoint.h"
#include "model/decoder/device.h"
#include "model/decoder/weights.h"
#include "trainer/stages/guard.h"

namespace tdock::bench {
namespace {

constexpr double kGigabyte = 1e9;

// A checkpoint in a folder of its own, which is gone when the benchmark is.
class Checkpoint {
 public:
  Checkpoint(const at::Device& device, const Settings& settings)
      : clock_(settings.clock),
        device_(device),
        folder_(absl::StrCat(std::filesystem::temp_directory_path().string(), "/tdock-bench-load-", ::getpid())) {}
  ~Checkpoint() { std::filesystem::remove_all(folder_); }

  absl::Status Write(bool quick) {
    at::NoGradGuard no_grad;
    model::ModelConfig config;
    config.vocab_size = quick ? 1000 : 32'000;
    config.hidden_size = quick ? 256 : 2048;
    config.intermediate_size = quick ? 512 : 5632;
    config.num_layers = 8;
    config.num_heads = 16;
    config.num_kv_heads = 8;
    config.head_dim = config.hidden_size / 16;
    config.max_positions = 1024;
    config.tied_head = false;
    const model::Decoder decoder = model::Decoder::Uninitialised(config, at::kCPU);
    for (const at::Tensor& parameter : decoder.parameters()) parameter.fill_(0.5);
    bytes_ = static_cast<double>(decoder.parameter_count()) * 4;
    return model::SaveCheckpoint(Env::Real(), folder_, decoder);
  }

  // Gigabytes in a second, and the highest memory on the way over the size of the weights.
  absl::StatusOr<Figure> Load() {
    TDOCK_ASSIGN_OR_RETURN(const int64_t before, RestartPeakMemory());
    absl::StatusOr<model::Decoder> decoder = absl::UnknownError("not loaded");
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock_, [&]() -> absl::Status {
                             decoder = model::LoadCheckpoint(Env::Real(), folder_, device_);
                             TDOCK_RETURN_IF_ERROR(decoder.status());
                             model::AwaitDevice(decoder->parameters().back().device());
                             return absl::OkStatus();
                           }));
    TDOCK_ASSIGN_OR_RETURN(const int64_t peak, PeakResidentMemory(Env::Real()));
    return Figure(bytes_ / seconds / kGigabyte, {{"peak", static_cast<double>(peak - before) / bytes_}});
  }

  // The same bytes by read(2) into fresh memory.
  absl::StatusOr<double> Read() {
    const std::string path = JoinPath(folder_, "model.safetensors");
    ::malloc_trim(0);
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock_, [&]() -> absl::Status {
                             const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
                             const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
                             at::Tensor memory = at::empty({size}, at::kByte);
                             int64_t read = 0;
                             while (read < size) {
                               const ssize_t got = ::read(file, memory.mutable_data_ptr<uint8_t>() + read,
                                                          static_cast<size_t>(size - read));
                               if (got <= 0) break;
                               read += got;
                             }
                             ::close(file);
                             if (read == size) return absl::OkStatus();
                             return absl::UnavailableError(absl::StrCat(path, ": read ", read, " of ", size, " bytes"));
                           }));
    return bytes_ / seconds / kGigabyte;
  }

 private:
  Clock& clock_;
  const at::Device device_;
  const std::string folder_;
  double bytes_ = 0;
};

absl::StatusOr<Prepared> PrepareLoad(const Settings& settings) {
  TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(settings.device));
  const auto checkpoint = std::make_shared<Checkpoint>(device, settings);
  TDOCK_RETURN_IF_ERROR(checkpoint->Write(settings.quick));
  return Prepared{.run = [checkpoint] { return trainer::Guarded([&] { return checkpoint->Load(); }); },
                  .reference = [checkpoint] { return checkpoint->Read(); }};
}

}  // namespace

std::vector<Benchmark> LoadBenchmarks() {
  return {
      {.name = "load",
       .unit = "GB/s",
       .better = Better::kHigher,
       .of = "read",
       .prepare = [](const Settings& settings) { return trainer::Guarded([&] { return PrepareLoad(settings); }); }}};
}

}  // namespace tdock::bench
