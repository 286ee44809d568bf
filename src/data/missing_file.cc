#include "data/missing_file.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/nearest.h"
#include "core/base/utf8.h"

namespace tdock::data {
namespace {

// "owner/name", with no extension.
bool LooksLikeHubName(absl::string_view path) {
  const size_t slash = path.find('/');
  return slash != absl::string_view::npos && slash > 0 && slash + 1 < path.size() && path.rfind('/') == slash &&
         !absl::StartsWith(path, ".") && !absl::StartsWith(path, "~") && !absl::StrContains(path.substr(slash), ".");
}

absl::string_view WithoutExtension(absl::string_view name) { return name.substr(0, name.rfind('.')); }

// Up to three of `names` that are spelt like `name`, the nearest first.
std::vector<std::string> NamesLike(absl::string_view name, const std::vector<std::string>& names) {
  constexpr size_t kMost = 3;
  const size_t near_enough = std::max<size_t>(2, name.size() / 3);
  std::vector<std::pair<size_t, std::string>> ranked;
  for (const std::string& other : names) {
    // Another extension counts as one slip.
    const size_t distance =
        std::min(EditDistance(name, other), 1 + EditDistance(WithoutExtension(name), WithoutExtension(other)));
    if (distance <= near_enough) ranked.emplace_back(distance, other);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> nearest;
  for (size_t i = 0; i < std::min(ranked.size(), kMost); ++i) nearest.push_back(EscapeForMessage(ranked[i].second));
  return nearest;
}

}  // namespace

absl::Status MissingFile(Env& env, const std::string& path) {
  constexpr size_t kMostNames = 10'000;  // to compare with
  constexpr size_t kLongestName = 255;
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  const std::string shown = EscapeForMessage(path, 500);
  absl::StatusOr<std::vector<std::string>> names = env.List(folder);
  if (!names.ok()) {
    if (LooksLikeHubName(path)) {
      return absl::NotFoundError(
          absl::StrCat(shown,
                       ": there is no such file. If it is a data set on the Hugging Face hub: nothing is downloaded; "
                       "run `hf download ",
                       shown, " --repo-type dataset --local-dir FOLDER`, then set data.train_files to FOLDER"));
    }
    return absl::NotFoundError(
        absl::StrCat(shown, ": there is no such file, nor the folder ", EscapeForMessage(folder, 500)));
  }
  if (names->size() > kMostNames) names->resize(kMostNames);
  std::string message = absl::StrCat(shown, ": there is no such file");
  const std::vector<std::string> nearest =
      name.size() > kLongestName ? std::vector<std::string>() : NamesLike(name, *names);
  if (!nearest.empty()) {
    absl::StrAppend(&message, "; did you mean ", absl::StrJoin(nearest, " or "), "?");
  } else if (absl::StartsWith(path, "~")) {
    absl::StrAppend(&message, "; \"~\" stands for the home folder only in \"~/\"");
  }
  return absl::NotFoundError(message);
}

}  // namespace tdock::data
