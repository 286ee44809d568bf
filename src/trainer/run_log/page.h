// Pages that load nothing, with their data in them.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "trainer/run_log/metrics_log.h"

namespace tdock::trainer {

// The template with style, script and data in their places. No text of the data reaches the page as markup; invalid
// UTF-8 in it becomes U+FFFD.
std::string FilledPage(absl::string_view page_template, const LogRecord& data);

// The page of runs that are followed, which has no data in it. What remains to be filled in is "{{nonce}}", once.
std::string LivePage();

}  // namespace tdock::trainer
