// The files of the router's web page, which the build embeds into the program: it is served without
// a file on disk and without a request to any other server. Their sources lie in
// router/front_end/http/page/; cmake/EmbedPage.cmake writes the .cc file.
// Thread safety: constants. Owner: the program.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::router {

struct PageFile {
  absl::string_view name;  // "chat.js"
  absl::string_view text;
};

absl::Span<const PageFile> PageFiles();

}  // namespace tandem::router
