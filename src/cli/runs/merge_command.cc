#include <unistd.h>

#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/commands.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "tdock/dtype.h"
#include "trainer/merge/compare_sources.h"
#include "trainer/merge/merged_folder.h"
#include "trainer/merge/open_source.h"

namespace tdock::cli {
namespace {

struct SourceArguments {
  std::string folder;  // --local_dir
  trainer::OpenOptions open;
  std::string dtype = "stored";
  // Options of verl's merger. No model is made here, so that where it would be does not matter; whether the head is the
  // embedding, or one of values, config.json says.
  bool use_cpu_initialization = false, tie_word_embedding = false;
  bool trust_remote_code = false, is_private = false;
  std::string upload;
};

struct MergeArguments {
  SourceArguments source;
  std::string target, max_file = "5GB";
};

struct TestArguments {
  SourceArguments source;
  std::vector<std::string> folders;
  std::string reference;  // --test_hf_dir
};

void AddSource(CLI::App& command, SourceArguments& arguments) {
  command
      .add_option("--backend", arguments.open.backend,
                  "Who wrote it: auto (as the folder looks), tdock, fsdp, megatron")
      ->capture_default_str();
  command.add_option("--local_dir,--local-dir", arguments.folder,
                     "A run, whose newest checkpoint is taken; a checkpoint; a model; adapters; shards");
  command.add_option("--base", arguments.open.base,
                     "The model that adapters are merged into, if it is not where adapter_config.json says");
  command.add_option("--python", arguments.open.python, "Python 3, which reads the pickles of fsdp and megatron")
      ->capture_default_str();
  command
      .add_option("--dtype", arguments.dtype,
                  "Of the weights: stored (as they are), float32, bfloat16, float16, float64")
      ->capture_default_str();
  for (CLI::Option* option : {command.add_flag("--use_cpu_initialization", arguments.use_cpu_initialization),
                              command.add_flag("--tie-word-embedding", arguments.tie_word_embedding),
                              command.add_flag("--is-value-model", arguments.open.is_value_model),
                              command.add_flag("--trust-remote-code", arguments.trust_remote_code),
                              command.add_option("--hf_upload_path", arguments.upload),
                              command.add_flag("--private", arguments.is_private)}) {
    option->group("");  // refused by name, or without effect
  }
}

absl::Status CheckUnsupported(const SourceArguments& arguments) {
  if (arguments.trust_remote_code) {
    return absl::UnimplementedError("--trust-remote-code: code of a checkpoint is never run; leave the option out");
  }
  if (!arguments.upload.empty() || arguments.is_private) {
    return absl::UnimplementedError(
        "--hf_upload_path and --private: nothing is uploaded; merge, then run `hf upload REPOSITORY TARGET_DIR`");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<DType>> DTypeOf(const std::string& text) {
  if (text == "stored") return std::nullopt;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    if (text == Name(dtype)) return dtype;
  }
  if (text == "bf16") return DType::kBF16;
  if (text == "fp16") return DType::kF16;
  return absl::InvalidArgumentError(
      absl::StrCat("--dtype ", EscapeForMessage(text), ": known are stored, float32, bfloat16, float16 and float64"));
}

// One line of progress: on a terminal the same line again and again, otherwise one for each file.
class ProgressLine {
 public:
  void Show(const std::string& text) {
    if (!terminal_) return;
    std::cerr << "\r\033[K" << text << std::flush;
    shown_ = true;
  }
  void Say(const std::string& text) {
    Clear();
    std::cerr << text << "\n";
  }
  void Clear() {
    if (std::exchange(shown_, false)) std::cerr << "\r\033[K" << std::flush;
  }

 private:
  const bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool shown_ = false;
};

std::string SizeText(uint64_t bytes) {
  const auto number = static_cast<double>(bytes);
  return bytes < 1'000'000'000 ? absl::StrFormat("%.2f MB", number / 1e6) : absl::StrFormat("%.2f GB", number / 1e9);
}

absl::Status Merge(const MergeArguments& arguments) {
  TDOCK_RETURN_IF_ERROR(CheckUnsupported(arguments.source));
  if (arguments.source.folder.empty() || arguments.target.empty()) {
    return absl::InvalidArgumentError("--local_dir and --target_dir are needed: what is merged, and into which folder");
  }
  trainer::MergeOptions options;
  TDOCK_ASSIGN_OR_RETURN(options.dtype, DTypeOf(arguments.source.dtype));
  const absl::StatusOr<uint64_t> max_bytes = trainer::ParseFileSize(arguments.max_file);
  if (!max_bytes.ok()) return Annotate(max_bytes.status(), "--max_shard_size");
  options.max_file_bytes = *max_bytes;
  TDOCK_ASSIGN_OR_RETURN(const trainer::WeightSource source,
                         trainer::OpenSource(Env::Real(), arguments.source.folder, arguments.source.open));
  ProgressLine line;
  uint64_t bytes = 0;
  size_t kept = 0, files = 0;
  options.progress = [&](const trainer::MergeProgress& progress) {
    bytes = progress.bytes;
    files = progress.files;
    const std::string done = absl::StrCat("file ", progress.files_done, " of ", progress.files, ", ",
                                          SizeText(progress.bytes_done), " of ", SizeText(progress.bytes));
    if (progress.at.empty()) {
      line.Say(absl::StrCat("merged ", done));
    } else {
      line.Show(absl::StrCat("merging ", done, ": ", EscapeForMessage(progress.at, 100)));
    }
  };
  const absl::Status status = trainer::WriteMergedFolder(Env::Real(), source, arguments.target, options, &kept);
  line.Clear();
  TDOCK_RETURN_IF_ERROR(status);
  std::cout << "merged " << EscapeUnprintable(source.what) << " into " << EscapeUnprintable(arguments.target) << ": "
            << source.weights.size() << " weights, " << bytes << " bytes in " << files
            << (files == 1 ? " file" : " files");
  if (kept > 0) std::cout << ", of which " << kept << " were there already";
  std::cout << "\n";
  return absl::OkStatus();
}

// The two folders to compare: two arguments, or --local_dir and --test_hf_dir, or one of each.
absl::StatusOr<std::pair<std::string, std::string>> FoldersOf(const TestArguments& arguments) {
  std::vector<std::string> folders;
  if (!arguments.source.folder.empty()) folders.push_back(arguments.source.folder);
  folders.insert(folders.end(), arguments.folders.begin(), arguments.folders.end());
  if (!arguments.reference.empty()) folders.push_back(arguments.reference);
  if (folders.size() == 2) return std::pair(folders[0], folders[1]);
  return absl::InvalidArgumentError(absl::StrCat("two folders are compared, but ", folders.size(),
                                                 " are given: tdock merge test A B, or --local_dir A --test_hf_dir B"));
}

absl::Status Test(const TestArguments& arguments) {
  TDOCK_RETURN_IF_ERROR(CheckUnsupported(arguments.source));
  TDOCK_ASSIGN_OR_RETURN(const std::optional<DType> dtype, DTypeOf(arguments.source.dtype));
  TDOCK_ASSIGN_OR_RETURN(const auto folders, FoldersOf(arguments));
  trainer::OpenOptions as_it_looks = arguments.source.open;
  as_it_looks.backend = "auto";
  TDOCK_ASSIGN_OR_RETURN(const trainer::WeightSource one,
                         trainer::OpenSource(Env::Real(), folders.first, arguments.source.open));
  TDOCK_ASSIGN_OR_RETURN(const trainer::WeightSource other,
                         trainer::OpenSource(Env::Real(), folders.second, as_it_looks));
  ProgressLine line;
  const auto differences = trainer::CompareSources(Env::Real(), one, other, dtype, [&](const std::string& name) {
    line.Show(absl::StrCat("comparing ", EscapeForMessage(name, 100)));
  });
  line.Clear();
  TDOCK_RETURN_IF_ERROR(differences.status());
  if (differences->empty()) {
    std::cout << "the same: " << one.weights.size() << " weights of " << EscapeUnprintable(one.what) << " and of "
              << EscapeUnprintable(other.what) << "\n";
    return absl::OkStatus();
  }
  for (const std::string& difference : *differences) std::cout << EscapeUnprintable(difference, 2000) << "\n";
  return EndedWith(
      1, absl::StrCat(EscapeUnprintable(one.what), " and ", EscapeUnprintable(other.what), " are not the same"));
}

}  // namespace

Command AddMerge(CLI::App& app) {
  auto merge = std::make_shared<MergeArguments>();
  auto test = std::make_shared<TestArguments>();
  CLI::App* command = AddSubcommand(app, "merge");
  AddSource(*command, merge->source);
  command->add_option("--target_dir,--target-dir", merge->target, "The folder to make; it must not be there");
  command->add_option("--max_shard_size,--max-shard-size", merge->max_file, "The largest file of weights")
      ->capture_default_str();
  CLI::App* tests = command->add_subcommand(
      "test", "Compares two models to the bit, wherever their weights are, and names the first difference.");
  AddSource(*tests, test->source);
  tests->add_option("folders", test->folders, "Two folders, each as for --local_dir")->expected(0, 2);
  tests->add_option("--test_hf_dir,--test-hf-dir", test->reference, "The second folder, as verl's merger names it");
  return [merge, test, tests] { return tests->parsed() ? Test(*test) : Merge(*merge); };
}

}  // namespace tdock::cli
