#include "bench/inference/served_llama.h"

#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bench/torch/subjects.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "model/decoder/checkpoint.h"
#include "model/decoder/device.h"
#include "text/char_tokenizer.h"

namespace tdock::bench {
namespace {

constexpr absl::Duration kStart = absl::Minutes(2);
constexpr int kFirstCharacter = 0x4E00;

model::Decoder TinyLlama(at::ScalarType dtype) {
  model::ModelConfig config;
  config.vocab_size = 8192;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_layers = 2;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 32;
  config.max_positions = 1024;
  return model::Decoder::Random(config, 1, at::kCPU, dtype);
}

// The two tokens that are no characters are <pad> and <eos>.
std::string Alphabet(int64_t tokens) {
  std::string alphabet;
  for (int code = kFirstCharacter; code < kFirstCharacter + tokens - 2; ++code) {
    alphabet += {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3F)),
                 static_cast<char>(0x80 | (code & 0x3F))};
  }
  return alphabet;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LlamaFolder>> LlamaFolder::Write(const Settings& settings, at::ScalarType dtype) {
  static int number = 0;
  std::unique_ptr<LlamaFolder> folder(new LlamaFolder(
      absl::StrCat(std::filesystem::temp_directory_path().string(), "/tdock-bench-serve-", ::getpid(), "-", ++number)));
  const model::Decoder decoder = settings.quick ? TinyLlama(dtype) : MakeLlama95m(at::kCPU, dtype);
  TDOCK_RETURN_IF_ERROR(model::SaveCheckpoint(Env::Real(), folder->path(), decoder));
  TDOCK_ASSIGN_OR_RETURN(const auto tokenizer, text::CharTokenizer::Create(Alphabet(decoder.config().vocab_size)));
  TDOCK_RETURN_IF_ERROR(tokenizer->Save(Env::Real(), folder->path()));
  return folder;
}

LlamaFolder::~LlamaFolder() { std::filesystem::remove_all(path_); }

absl::StatusOr<std::unique_ptr<ServedLlama>> ServedLlama::Start(const Settings& settings, at::ScalarType dtype) {
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<LlamaFolder> folder, LlamaFolder::Write(settings, dtype));
  // The shell becomes the program; what it says is on its standard error.
  TDOCK_ASSIGN_OR_RETURN(
      auto process, ChildProcess::Start({"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh", FolderOfThisProgram() + "/tdock",
                                         "serve", "--model", folder->path(), "--port", "0", "--device", settings.device,
                                         "--threads", absl::StrCat(settings.threads), "--served-model-name", "llama"}));
  std::string said;
  for (;;) {
    const absl::StatusOr<std::string> line = process->ReadLine(kStart);
    if (!line.ok()) return Annotate(line.status(), absl::StrCat("tdock serve says: ", said));
    int port = 0;
    if (absl::StartsWith(*line, "Serving ") && absl::SimpleAtoi(line->substr(line->rfind(':') + 1), &port)) {
      return std::unique_ptr<ServedLlama>(new ServedLlama(std::move(folder), std::move(process), port));
    }
    absl::StrAppend(&said, *line, "\n");
  }
}

}  // namespace tdock::bench
