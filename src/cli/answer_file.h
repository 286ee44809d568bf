// A file of answers that a command goes on with where an earlier one was ended, killed or cut off from power.
//
//   answers.jsonl             a line of JSON for each answer, with its "line" (of the prompt, from 1) and "sample"
//   answers.jsonl.state.json  what the answers were made with, an object; written before the first of them
//   answers.jsonl.lock        locked while a process writes answers
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/env.h"
#include "core/base/file_lock.h"
#include "core/base/json_text.h"

namespace tdock::cli {

// Not thread-safe.
class AnswerFile {
 public:
  struct Options {
    std::string path;
    bool overwrite = false;  // begins anew whatever is there
    int64_t lines = 0;       // of prompts
    int64_t samples = 1;     // answers to each
    bool numbered = true;    // false: the one answer to each does not say its "sample"
    // Called with each answer that is there when the file is opened. Its error is that of Open().
    std::function<absl::Status(const nlohmann::ordered_json& answer)> on_found = {};
  };

  // Opens the file to append to it; of a last line that was not written to its end, nothing is kept. `made_with` is an
  // object, whose values tell whether the answers that are there belong to those that will come.
  //
  // InvalidArgument for something else than a regular file, whatever `overwrite` says. AlreadyExists while another
  // AnswerFile, of any process, has the same path. FailedPrecondition names each value that differs, or says that the
  // file was not made here. DataLoss for a line that is not an answer. Other errors are those of the Env.
  static absl::StatusOr<std::unique_ptr<AnswerFile>> Open(Env& env, const Options& options,
                                                          const nlohmann::ordered_json& made_with);

  // What the answers in the file at `path` were made with; nullopt where nothing says it.
  static std::optional<nlohmann::ordered_json> MadeWith(Env& env, const std::string& path);

  // Whether the answer `sample` to the prompt of `line` was there when the file was opened.
  bool Has(int64_t line, int64_t sample) const { return has_[Index(line, sample)]; }
  int64_t found() const { return found_; }  // how many were

  // Written at once: it is there even if the process is killed.
  absl::Status Append(absl::string_view line) { return file_->Append(absl::StrCat(line, "\n")); }

  // Once all is written: returns when it would survive a power failure.
  absl::Status Close();

 private:
  AnswerFile(Env& env, const Options& options);

  size_t Index(int64_t line, int64_t sample) const {
    return static_cast<size_t>((line - 1) * options_.samples + sample);
  }
  absl::Status CheckState(const nlohmann::ordered_json& made_with) const;
  absl::Status ReadAnswers();
  absl::Status Mark(absl::string_view line, const std::string& place);
  absl::Status KeepOnly(uint64_t bytes) const;

  Env& env_;
  const Options options_;
  const std::string state_path_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<WritableFile> file_;
  std::vector<bool> has_;
  int64_t found_ = 0;
};

}  // namespace tdock::cli
