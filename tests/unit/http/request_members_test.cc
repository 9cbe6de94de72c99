// Goal: each member that OpenAI's, vLLM's and llama.cpp's request schemas name has a row in the
// parameter tables, and the row tells the truth: what is served is read, what is refused is refused
// by its name, and what is harmless changes nothing.
#include "common/request/request_members.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "router/front_end/http/chat_request.h"
#include "router/front_end/http/completion_request.h"
#include "tests/testing/models.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using request::Handling;
using request::RequestMember;
using ::testing::HasSubstr;

// A strict request of `api` with these members beside its prompt.
absl::StatusOr<ApiRequest> Read(unsigned api, const std::string& members) {
  static const std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  const std::string more = members.empty() ? "" : absl::StrCat(",", members);
  if (api == request::kCompletions) {
    ASSIGN_OR_RETURN(const Json body, ParseJsonBody(absl::StrCat(R"({"prompt":"a")", more, "}")));
    return ReadCompletion(body, /*strict=*/true);
  }
  ASSIGN_OR_RETURN(
      const Json body,
      ParseJsonBody(absl::StrCat(R"({"messages":[{"role":"user","content":"a"}])", more, "}")));
  return ReadChat(body, *assets, absl::UnixEpoch(), /*strict=*/true);
}

std::string Member(absl::string_view name, const std::string& value) {
  return absl::StrCat("\"", name, "\":", value);
}

constexpr const char* kValues[] = {"17", "true", "\"x\"", "[\"x\"]", R"([["x",7]])", R"({"a":1})"};

// Calls `check` with each row of `handling`, for each API that it is of.
template <typename Check>
void ForEach(Handling handling, const Check& check) {
  int rows = 0;
  for (const RequestMember& member : request::kRequestMembers) {
    if (member.handling != handling) continue;
    for (const request::Api api : {request::kCompletions, request::kChat}) {
      if (!(member.apis & api)) continue;
      SCOPED_TRACE(absl::StrCat(member.name, " of api ", api));
      check(member, api);
      ++rows;
    }
  }
  EXPECT_GT(rows, 20);
}

TEST(RequestMembers, WhatIsServedIsRead) {
  EXPECT_THAT(
      std::string(Read(request::kChat, Member("no_such_member", "null")).status().message()),
      HasSubstr("no_such_member: unknown field"));
  ForEach(Handling::kServed, [](const RequestMember& member, unsigned api) {
    if (member.name == "prompt" || member.name == "messages") return;  // in every request here
    EXPECT_OK(Read(api, Member(member.name, "null")).status());
  });
}

TEST(RequestMembers, WhatIsRefusedIsRefusedByName) {
  ForEach(Handling::kRefused, [](const RequestMember& member, unsigned api) {
    const Json neutral = member.neutral.empty() ? Json::array() : Json::parse(member.neutral);
    const bool idle = member.name == "repeat_last_n";
    const std::string beside = idle ? R"(,"repeat_penalty":1.5)" : "";
    for (const char* value : kValues) {
      if (std::count(neutral.begin(), neutral.end(), Json::parse(value)) > 0) continue;
      const absl::Status status =
          Read(api, absl::StrCat(Member(member.name, value), beside)).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << value << ": " << status;
      EXPECT_TRUE(absl::StartsWith(status.message(), absl::StrCat(member.name, ": not served")))
          << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(member.note)));
    }
    for (const Json& value : neutral)
      EXPECT_OK(Read(api, absl::StrCat(Member(member.name, value.dump()), beside)).status());
    EXPECT_OK(Read(api, Member(member.name, "null")).status());
    for (const char* nothing : {"false", "\"\"", "[]", "{}"})
      EXPECT_EQ(Read(api, absl::StrCat(Member(member.name, nothing), beside)).ok(), neutral.empty())
          << nothing;
  });
  EXPECT_OK(Read(request::kChat, R"("repeat_last_n":64,"repeat_penalty":1)").status());
}

TEST(RequestMembers, WhatIsHarmlessChangesNothing) {
  ForEach(Handling::kHarmless, [](const RequestMember& member, unsigned api) {
    ASSERT_OK_AND_ASSIGN(const ApiRequest plain, Read(api, ""));
    for (const char* value : kValues) {
      ASSERT_OK_AND_ASSIGN(const ApiRequest with, Read(api, Member(member.name, value)));
      ASSERT_EQ(with.requests.size(), 1u);
      EXPECT_EQ(with.requests[0].SerializeAsString(), plain.requests[0].SerializeAsString())
          << value;
      EXPECT_EQ(with.stream, plain.stream);
    }
  });
}

// Names in one of the tables, for the API.
bool IsListed(absl::string_view name, unsigned api) {
  bool listed = false;
  request::ForEachParameter([&](const auto& row) {
    listed = listed || (row.about.name == name && (row.about.apis & api));
    for (const request::Alias& alias : row.about.aliases)
      listed = listed || (alias.name == name && (alias.apis & api));
  });
  for (const RequestMember& member : request::kRequestMembers)
    listed = listed || (member.name == name && (member.apis & api));
  return listed;
}

TEST(RequestMembers, EveryNameOfTheOtherServersSchemasIsListed) {
  std::ifstream file(testing::GoldenPath("http/request_schemas.txt"));
  ASSERT_TRUE(file);
  std::map<std::string, int> names;  // by section
  std::string line, section;
  while (std::getline(file, line)) {
    if (absl::StartsWith(line, "# ")) section = line;
    if (line.empty() || absl::StartsWith(line, "# ")) continue;
    const bool chat = absl::StrContains(section, " chat: ");
    EXPECT_TRUE(IsListed(line, chat ? request::kChat : request::kCompletions))
        << line << " of " << section;
    ++names[section];
  }
  EXPECT_EQ(names.size(), 6u);
  for (const auto& [schema, count] : names) EXPECT_GT(count, 15) << schema;
}

// A name may be in both tables where the front end's code and the parameter read it together.
TEST(RequestMembers, NoNameHasTwoMeanings) {
  std::map<std::pair<absl::string_view, unsigned>, int> members, meanings;
  const auto count = [](auto& rows, absl::string_view name, unsigned apis) {
    for (const request::Api api : {request::kCompletions, request::kChat})
      if (apis & api) ++rows[{name, api}];
  };
  for (const RequestMember& member : request::kRequestMembers) {
    count(members, member.name, member.apis);
    if (member.handling != Handling::kServed) count(meanings, member.name, member.apis);
  }
  request::ForEachParameter([&](const auto& row) {
    count(meanings, row.about.name, row.about.apis);
    for (const request::Alias& alias : row.about.aliases) count(meanings, alias.name, alias.apis);
  });
  for (const auto& rows : {members, meanings})
    for (const auto& [row, number] : rows) EXPECT_EQ(number, 1) << row.first;
  EXPECT_TRUE(IsListed("temperature", request::kChat));
  EXPECT_FALSE(IsListed("messages", request::kCompletions));
}

}  // namespace
}  // namespace tandem::router
