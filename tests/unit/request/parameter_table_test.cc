// Goal: every bound of the table of parameters holds: the value on it is accepted, the next one
// beyond it is refused by name; the table's names are distinct; docs/PARAMETERS.md is what the
// table says.
#include "common/request/parameter_table.h"

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <type_traits>

#include "tests/testing/parameter_samples.h"
#include "tests/testing/status_matchers.h"

namespace tandem::request {
namespace {

using ::tandem::testing::kSampleVocabulary;
using ::testing::StartsWith;

template <typename Row>
using ParamsOf = typename std::decay_t<Row>::params_type;

// Valid parameters, in which a test changes one member.
template <typename Params>
Params Valid() {
  Params params;
  // Room for min_tokens, which max_tokens bounds.
  if constexpr (std::is_same_v<Params, StopParams>) params.max_tokens = 1 << 20;
  return params;
}

template <typename Row, typename T>
absl::Status Try(const Row& row, const T& value) {
  ParamsOf<Row> params = Valid<ParamsOf<Row>>();
  params.*row.member = value;
  return Validate(params, kSampleVocabulary);
}

template <typename Row, typename T>
void ExpectAccepted(const Row& row, const T& value) {
  EXPECT_OK(Try(row, value)) << row.about.name;
}

// `where` follows the parameter's name in the message.
template <typename Row, typename T>
void ExpectRefused(const Row& row, const T& value, const std::string& where = "") {
  EXPECT_THAT(Try(row, value), testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                                 StartsWith(absl::StrCat(row.about.name, where))));
}

TEST(ParameterTable, TheEndsOfEveryNumbersRangeAreExact) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  int numbers = 0;
  ForEachParameter([&](const auto& row) {
    using T = typename std::decay_t<decltype(row)>::value_type;
    const Range& range = row.about.range;
    if constexpr (std::is_same_v<T, double>) {
      ++numbers;
      const double above_low = std::nextafter(range.low, kInfinity);
      ExpectAccepted(row, above_low);
      ExpectAccepted(row, range.high);
      range.low_excluded ? ExpectRefused(row, range.low) : ExpectAccepted(row, range.low);
      ExpectRefused(row, std::nextafter(range.low, -kInfinity));
      ExpectRefused(row, std::nextafter(range.high, kInfinity));
      for (const double none : {std::nan(""), kInfinity, -kInfinity}) ExpectRefused(row, none);
    } else if constexpr (std::is_same_v<T, int32_t> || std::is_same_v<T, std::optional<int32_t>>) {
      ++numbers;
      ExpectAccepted(row, T(static_cast<int32_t>(range.low)));
      ExpectRefused(row, T(static_cast<int32_t>(range.low) - 1));
      if (range.high == Range::kUnbounded) return;
      ExpectAccepted(row, T(static_cast<int32_t>(range.high)));
      ExpectRefused(row, T(static_cast<int32_t>(range.high) + 1));
    }
  });
  EXPECT_GE(numbers, 10);
}

TEST(ParameterTable, TheBoundsOfEveryListAreExact) {
  constexpr TokenId kLast = kSampleVocabulary - 1;
  ForEachParameter([&](const auto& row) {
    using T = typename std::decay_t<decltype(row)>::value_type;
    const ListBounds& list = row.about.list;
    if constexpr (std::is_same_v<T, std::vector<TokenId>>) {
      ExpectAccepted(row, T{0, kLast});
      ExpectRefused(row, T{kLast + 1});
      ExpectRefused(row, T{-1});
      ExpectRefused(row, T{1, 0}, ": token 0 after 1");
    } else if constexpr (std::is_same_v<T, std::vector<std::pair<TokenId, float>>>) {
      const auto low = static_cast<float>(row.about.range.low);
      const auto high = static_cast<float>(row.about.range.high);
      ExpectAccepted(row, T{{0, low}, {kLast, high}});
      ExpectRefused(row, T{{0, std::nextafter(low, 2 * low)}}, " of token 0");
      ExpectRefused(row, T{{0, std::nextafter(high, 2 * high)}}, " of token 0");
      ExpectRefused(row, T{{0, std::nanf("")}}, " of token 0");
      ExpectRefused(row, T{{kLast + 1, 0.f}});
      ExpectRefused(row, T{{1, 0.f}, {1, 0.f}});
    } else if constexpr (std::is_same_v<T, std::vector<std::string>> ||
                         std::is_same_v<T, std::vector<std::vector<TokenId>>>) {
      using Entry = typename T::value_type;
      ExpectAccepted(row, T(list.entries_max, Entry(list.entry_size_max, 'a')));
      ExpectAccepted(row, T{Entry(list.entry_size_min, 'a')});
      ExpectRefused(row, T(list.entries_max + 1, Entry(list.entry_size_min, 'a')));
      ExpectRefused(row, T{Entry(list.entry_size_max + 1, 'a')}, "[0]");
      ExpectRefused(row, T{Entry(list.entry_size_min - 1, 'a')}, "[0]");
    }
  });
}

TEST(ParameterTable, NoTwoParametersShareANameInOneApi) {
  for (const Api api : {kCompletions, kChat, kResponses, kBatch, kOllama, kMessages}) {
    std::set<std::string> names;
    ForEachParameter([&](const auto& row) {
      const Description& about = row.about;
      EXPECT_FALSE(about.help.empty()) << about.name;
      if (about.apis & api) {
        EXPECT_TRUE(names.insert(std::string(about.name)).second);
      }
      for (const Alias& alias : about.aliases) {
        if (alias.apis & api) {
          EXPECT_TRUE(names.insert(std::string(alias.name)).second);
        }
      }
    });
    EXPECT_GE(names.size(), 15u);
  }
}

TEST(ParameterTable, ABeamSearchNamesWhatItWouldIgnore) {
  EXPECT_EQ(FirstUnusedByBeams({}, {}), "");
  ForEachParameter([&](const auto& row) {
    std::mt19937_64 random(7);
    using Params = ParamsOf<decltype(row)>;
    Params params;
    while (params.*row.member == Params().*row.member) {
      testing::Sample(row.about, random, &(params.*row.member));
    }
    absl::string_view unused;
    if constexpr (std::is_same_v<Params, SamplingParams>) {
      unused = FirstUnusedByBeams(params, {});
    } else {
      unused = FirstUnusedByBeams({}, params);
    }
    EXPECT_EQ(unused, row.about.beam_search ? "" : row.about.name);
  });
}

TEST(ParameterTable, TheCommittedDocumentIsWhatTheTableSays) {
  std::ifstream file(TANDEM_SOURCE_DIR "/docs/PARAMETERS.md");
  const std::string committed((std::istreambuf_iterator<char>(file)),
                              std::istreambuf_iterator<char>());
  EXPECT_EQ(committed, ParametersMarkdown())
      << "regenerate with: tandem parameter-docs > docs/PARAMETERS.md";
}

}  // namespace
}  // namespace tandem::request
