#include "kv/prefix_tree.h"

#include <algorithm>

#include "base/check.h"
#include "trace/trace.h"

namespace cutaway::kv {
namespace {

constexpr auto kPage = static_cast<size_t>(kernels::kTilePositions);

size_t common(std::span<const int32_t> a, std::span<const int32_t> b) {
  const auto ends = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<size_t>(ends.first - a.begin());
}

}  // namespace

PrefixTree::~PrefixTree() {
  // Not by recursion: a text may be long.
  std::vector<Node*> open{&root_};
  std::vector<std::unique_ptr<Node>> nodes;
  for (size_t i = 0; i < open.size(); ++i) {
    for (auto& [first, child] : open[i]->children) {
      pool_->release(child->page);
      open.push_back(child.get());
      nodes.push_back(std::move(child));
    }
    open[i]->children.clear();
  }
}

std::pair<PrefixTree::Node*, int64_t> PrefixTree::best_child(Node& node,
                                                             std::span<const int32_t> tokens) {
  std::pair<Node*, int64_t> best{nullptr, 0};
  if (tokens.empty()) return best;
  const auto [begin, end] = node.children.equal_range(tokens[0]);
  for (auto it = begin; it != end; ++it) {
    const auto same = static_cast<int64_t>(common(it->second->tokens, tokens));
    if (same > best.second) best = {it->second.get(), same};
  }
  return best;
}

int64_t PrefixTree::begin(std::span<const int32_t> tokens, Sequence& sequence) {
  CUTAWAY_SPAN(span, "kv::PrefixTree::begin", "tokens", tokens.size(), "held", count_);
  std::vector<Page*> pages;
  int64_t length = 0;
  ++clock_;
  for (Node* node = &root_;;) {
    const auto [child, same] = best_child(*node, tokens.subspan(static_cast<size_t>(length)));
    if (child == nullptr) break;
    child->last_use = clock_;
    pages.push_back(child->page);
    length += same;
    if (same < kernels::kTilePositions) break;
    node = child;
  }
  sequence.begin_with(pages, length);
  CUTAWAY_OUT(span, "length", length, "pages", pages.size());
  return length;
}

void PrefixTree::hold(Node& node, std::span<const int32_t> tokens, Page* page) {
  pool_->share(page);
  if (node.page != nullptr) pool_->release(node.page);
  node.page = page;
  node.tokens.assign(tokens.begin(), tokens.end());
}

void PrefixTree::insert(std::span<const int32_t> tokens, const Sequence& sequence) {
  CUTAWAY_SPAN(span, "kv::PrefixTree::insert", "tokens", tokens.size(), "held", count_);
  CUTAWAY_CHECK(std::ssize(tokens) <= sequence.length());
  ++clock_;
  Node* node = &root_;
  for (size_t i = 0; i * kPage < tokens.size(); ++i) {
    const auto part = tokens.subspan(i * kPage, std::min(kPage, tokens.size() - i * kPage));
    auto [child, same] = best_child(*node, part);
    const bool all_held = child != nullptr && same == std::ssize(part);
    if (!all_held) {
      // A page that holds more of the same text takes the place of one that holds less.
      const bool longer = child != nullptr && same == std::ssize(child->tokens);
      if (!longer) {
        auto made = std::make_unique<Node>();
        made->parent = node;
        child = node->children.emplace(part[0], std::move(made))->second.get();
        ++count_;
      }
      hold(*child, part, sequence.pages()[i]);
    }
    child->last_use = clock_;
    if (std::ssize(child->tokens) < kernels::kTilePositions) break;
    node = child;
  }
  CUTAWAY_OUT(span, "held", count_);
}

void PrefixTree::drop(Node* leaf) {
  pool_->release(leaf->page);
  --count_;
  auto& siblings = leaf->parent->children;
  const auto [begin, end] = siblings.equal_range(leaf->tokens[0]);
  siblings.erase(
      std::find_if(begin, end, [&](const auto& one) { return one.second.get() == leaf; }));
}

int64_t PrefixTree::evict(int64_t n) {
  CUTAWAY_SPAN(span, "kv::PrefixTree::evict", "pages", n, "held", count_);
  int64_t given = 0;
  while (given < n) {
    std::vector<Node*> leaves, open{&root_};
    while (!open.empty()) {
      Node* const node = open.back();
      open.pop_back();
      for (auto& [first, child] : node->children) open.push_back(child.get());
      if (node != &root_ && node->children.empty() && !node->page->shared()) leaves.push_back(node);
    }
    if (leaves.empty()) break;
    // The one that waited longest, and those before it that nothing else needs.
    Node* node = *std::min_element(leaves.begin(), leaves.end(), [](const Node* a, const Node* b) {
      return a->last_use < b->last_use;
    });
    const uint64_t oldest = node->last_use;
    while (given < n && node != &root_ && node->children.empty() && !node->page->shared() &&
           node->last_use == oldest) {
      Node* const before = node->parent;
      drop(node);
      ++given;
      node = before;
    }
  }
  CUTAWAY_OUT(span, "given", given, "held", count_);
  return given;
}

int64_t PrefixTree::evictable() const {
  // A page that somebody uses keeps those before it.
  struct Seen {
    const Node* node;
    size_t parent;
    bool kept;
  };
  std::vector<Seen> seen{{&root_, 0, true}};
  for (size_t i = 0; i < seen.size(); ++i) {
    for (const auto& [first, child] : seen[i].node->children) {
      seen.push_back({child.get(), i, child->page->shared()});
    }
  }
  int64_t out = 0;
  for (size_t i = seen.size(); i-- > 1;) {
    if (seen[i].kept) {
      seen[seen[i].parent].kept = true;
    } else {
      ++out;
    }
  }
  return out;
}

}  // namespace cutaway::kv
