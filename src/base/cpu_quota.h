// How much processor time the process's control group allows.
#pragma once

#include <string>

namespace cutaway {

// CPUs' worth of time (1.5: one and a half) that the cgroup of this process and all of its
// ancestors allow, from v2's cpu.max or v1's cpu.cfs_quota_us; 0 when there is no limit. Files are
// read under `root` ("" is the real system): root/proc/self/cgroup, root/sys/fs/cgroup/….
double cgroup_cpu_quota(const std::string& root);

}  // namespace cutaway
