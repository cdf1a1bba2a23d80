// The control groups that hold for this process.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cutaway {

struct CgroupFolder {
  std::string path;
  bool v2 = false;
};

// The folders of this process's group and of all its ancestors: v2's, and v1's of one controller
// ("cpu", "memory"). A group's limit holds for all below it. Inside a container the path may name a
// group of the host that is not there: then only the mount's own top counts, which is the
// container's group. Folders need not exist. Files are read under `root` ("" is the real system):
// root/proc/self/cgroup, root/sys/fs/cgroup/….
std::vector<CgroupFolder> cgroup_folders(const std::string& root, std::string_view controller);

// The text of a file of /proc or /sys; empty when it cannot be read.
std::string read_small_file(const std::string& path);

}  // namespace cutaway
