#include "cli/report/source_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem::cli {

std::string SourceText(const v1::TokensBySource& tokens) {
  std::string brought;
  const auto add = [&](int64_t count, const char* name) {
    if (count > 0) absl::StrAppend(&brought, brought.empty() ? "" : ", ", count, " ", name);
  };
  add(tokens.from_host_memory(), "from host memory");
  add(tokens.from_disk(), "from disk");
  add(tokens.fetched(), "fetched");
  return absl::StrCat(tokens.computed(), " computed, ", tokens.received(), " received, ",
                      tokens.cached(), " cached", brought.empty() ? "" : " (", brought,
                      brought.empty() ? "" : ")");
}

}  // namespace tandem::cli
