#define PCRE2_CODE_UNIT_WIDTH 8
#include "common/model/tokenizer/regex_splitter.h"

#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/model/tokenizer/onig_pattern.h"

namespace tandem::model::tokenizer_internal {
namespace {

// Bounds on one match: backtracking steps (a tenth of PCRE2's default, or a few for each byte: the
// patterns of known models try a run of white space from its end) and the JIT's stack, beyond which
// the interpreter takes over.
constexpr size_t kMatchLimit = 1'000'000, kMatchLimitPerByte = 4;
constexpr size_t kJitStackBytesMin = size_t{128} << 10;
constexpr size_t kJitStackBytesMax = size_t{1} << 20;

struct CompileDeleter {
  void operator()(pcre2_compile_context_8* context) const { pcre2_compile_context_free_8(context); }
};
struct MatchDeleter {
  void operator()(pcre2_match_data_8* data) const { pcre2_match_data_free_8(data); }
  void operator()(pcre2_match_context_8* context) const { pcre2_match_context_free_8(context); }
  void operator()(pcre2_jit_stack_8* stack) const { pcre2_jit_stack_free_8(stack); }
};

}  // namespace

void RegexSplitter::CodeDeleter::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free_8(code);
}

absl::StatusOr<RegexSplitter> RegexSplitter::Create(absl::string_view pattern) {
  ASSIGN_OR_RETURN(const std::string spelled, PatternOfOniguruma(pattern));
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  const std::unique_ptr<pcre2_compile_context_8, CompileDeleter> context(
      pcre2_compile_context_create_8(nullptr));
  pcre2_set_newline_8(context.get(), PCRE2_NEWLINE_LF);
  std::unique_ptr<pcre2_real_code_8, CodeDeleter> code(
      pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(spelled.data()), spelled.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                      &error_offset, context.get()));
  if (code == nullptr) {
    PCRE2_UCHAR8 message[256];
    pcre2_get_error_message_8(error, message, sizeof(message));
    return absl::InvalidArgumentError(absl::StrCat("pattern \"", pattern, "\", read as \"", spelled,
                                                   "\", at offset ", error_offset, ": ",
                                                   reinterpret_cast<const char*>(message)));
  }
  uint32_t matches_empty = 0;
  pcre2_pattern_info_8(code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    return absl::UnimplementedError(
        absl::StrCat("pattern \"", pattern, "\": matches the empty string"));
  }
  // Without JIT (refused by hardened kernels) the interpreter gives the same matches.
  pcre2_jit_compile_8(code.get(), PCRE2_JIT_COMPLETE);
  return RegexSplitter(std::move(code));
}

void RegexSplitter::Find(absl::string_view text, std::vector<SplitSpan>* spans) const {
  const std::unique_ptr<pcre2_match_data_8, MatchDeleter> data(
      pcre2_match_data_create_from_pattern_8(code_.get(), nullptr));
  const std::unique_ptr<pcre2_match_context_8, MatchDeleter> context(
      pcre2_match_context_create_8(nullptr));
  std::unique_ptr<pcre2_jit_stack_8, MatchDeleter> stack;
  const size_t limit = std::max(kMatchLimit, kMatchLimitPerByte * text.size());
  pcre2_set_match_limit_8(context.get(),
                          static_cast<uint32_t>(std::min<size_t>(limit, UINT32_MAX)));
  size_t position = 0;
  while (position < text.size()) {
    const auto match = [&](uint32_t options) {
      return pcre2_match_8(code_.get(), reinterpret_cast<PCRE2_SPTR8>(text.data()), text.size(),
                           position, PCRE2_NO_UTF_CHECK | options, data.get(), context.get());
    };
    int result = match(0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT && stack == nullptr) {
      stack.reset(pcre2_jit_stack_create_8(kJitStackBytesMin, kJitStackBytesMax, nullptr));
      pcre2_jit_stack_assign_8(context.get(), nullptr, stack.get());
      result = match(0);
    }
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
    if (result < 0) break;
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer_8(data.get());
    // With \K or lookbehind, a match could begin before the search position.
    if (offsets[0] < position || offsets[1] <= offsets[0]) break;
    if (offsets[0] > position) spans->push_back({position, offsets[0], false});
    spans->push_back({offsets[0], offsets[1], true});
    position = offsets[1];
  }
  if (position < text.size()) spans->push_back({position, text.size(), false});
}

std::vector<SplitSpan> ApplySplitBehavior(absl::Span<const SplitSpan> spans,
                                          SplitBehavior behavior) {
  std::vector<SplitSpan> out;
  bool previous_match = false;
  const auto take = [&](const SplitSpan& span) {
    bool join = false;
    switch (behavior) {
      case SplitBehavior::kRemoved:
        if (!span.is_match) out.push_back(span);
        return;
      case SplitBehavior::kIsolated:
        break;
      case SplitBehavior::kContiguous:
        join = !out.empty() && previous_match == span.is_match;
        break;
      case SplitBehavior::kMergedWithPrevious:
      case SplitBehavior::kMergedWithNext:
        join = !out.empty() && span.is_match && !previous_match;
        break;
    }
    previous_match = span.is_match;
    if (!join) {
      out.push_back(span);
      return;
    }
    out.back().begin = std::min(out.back().begin, span.begin);
    out.back().end = std::max(out.back().end, span.end);
  };
  if (behavior == SplitBehavior::kMergedWithNext) {
    std::for_each(spans.rbegin(), spans.rend(), take);
    std::reverse(out.begin(), out.end());
  } else {
    std::for_each(spans.begin(), spans.end(), take);
  }
  out.erase(std::remove_if(out.begin(), out.end(),
                           [](const SplitSpan& span) { return span.begin == span.end; }),
            out.end());
  return out;
}

}  // namespace tandem::model::tokenizer_internal
