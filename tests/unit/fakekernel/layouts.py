# SPDX-License-Identifier: LGPL-2.1-or-later
"""The struct types of *synthetic* kernels. Names and types are the kernel's, offsets invented.

The grammar is that of :func:`.types.declared`; features are those of :class:`.eras.Era` that an era
must have, or with ``!`` must lack.
"""

LAYOUTS = """
typedef bool unsigned char
typedef atomic_t struct atomic
struct atomic 4 : 0 int counter
typedef atomic_long_t struct atomic_long
struct atomic_long 8 : 0 long counter
typedef nodemask_t struct nodemask
struct nodemask 8 : 0 unsigned long [1] bits
struct cpumask 8 : 0 unsigned long [1] bits
struct hlist_node 16 : 0 struct hlist_node * next; 8 struct hlist_node ** pprev
struct hlist_head 8 : 0 struct hlist_node * first
struct hlist_bl_node 16 : 0 struct hlist_bl_node * next; 8 struct hlist_bl_node ** pprev
struct hlist_bl_head 8 : 0 struct hlist_bl_node * first
struct rb_root 8 : 0 struct rb_node * rb_node
struct rb_node 24 : 8 struct rb_node * rb_right; 16 struct rb_node * rb_left
struct xarray 16 : 0 int xa_lock; 8 void * xa_head
struct xa_node 576
    0 unsigned char shift; 1 unsigned char offset; 16 struct xa_node * parent
    48 void * [64] slots
struct idr 24 : 0 struct xarray idr_rt
struct ida 16
    0 struct xarray xa                                          ? !ida_radix
    0 struct radix_tree_root ida_rt                             ? ida_radix
struct radix_tree_root 16 : 8 struct radix_tree_node * rnode    ? ida_radix
struct radix_tree_node 576                                      ? ida_radix
    0 unsigned char shift; 48 void * [64] slots
struct static_key 8 : 0 atomic_t enabled                        ? codetag needs_objcg
struct static_key_false 8 : 0 struct static_key key             ? codetag needs_objcg

typedef memdesc_flags_t struct memdesc_flags                    ? memdesc_flags
struct memdesc_flags 8 : 0 unsigned long f                      ? memdesc_flags
struct page 64
    0 unsigned long flags                                       ? !memdesc_flags
    0 memdesc_flags_t flags                                     ? memdesc_flags
    0 struct slab_words -                                       ? !struct_slab
    8 unsigned long {compound}; 16 void * mapping; 48 atomic_t _mapcount
    56 unsigned long memcg_data                                 ? struct_slab
struct slab 64                                                  ? struct_slab
    0 unsigned long __page_flags                                ? !memdesc_flags
    0 memdesc_flags_t __page_flags                              ? memdesc_flags
    0 struct slab_words -
struct slab_words 64
    24 struct kmem_cache * slab_cache; 32 void * freelist; 40 unsigned int inuse:16
    42 unsigned int objects:15; 43.7 unsigned int frozen:1
    44 unsigned int stride                                      ? stride
    44 unsigned int obj_exts_in_object:1                        ? needs_objcg
    44.1 unsigned int obj_exts_needs_objcg:1                    ? needs_objcg
    56 unsigned long {vector}                                   ? vector
struct zone 64
    8 void * vmemmap_tails                                      ? compound_info
struct pglist_data 64
    0 int node_id; 8 atomic_long_t [4] vm_stat; 40 struct per_cpu_nodestat * per_cpu_nodestats
struct per_cpu_nodestat 8 : 0 signed char [4] vm_node_stat_diff

struct kmem_cache 256
    0 struct kmem_cache_cpu * cpu_slab                          ? cpu_slab
    8 unsigned long flags; 16 struct kobject kobj; 24 unsigned int size
    28 unsigned int object_size; 32 unsigned int offset; 40 struct kmem_cache_order_objects oo
    44 struct kmem_cache_order_objects max                      ? !page_type
    48 int refcount; 52 unsigned int red_left_pad; 56 const char * name
    64 struct list_head list
    80 unsigned long random                                     ? hardened
    88 struct memcg_cache_params memcg_params                   ? children
    112 struct slub_percpu_sheaves * cpu_sheaves                ? sheaves
    120 unsigned int sheaf_capacity                             ? sheaves
    128 struct kmem_cache_per_node_ptrs [8] per_node            ? per_node
    128 struct kmem_cache_node * [8] node                       ? !per_node
struct kmem_cache_order_objects 4 : 0 unsigned int x
struct kmem_cache_node 64
    8 struct list_head partial; 24 atomic_long_t nr_slabs; 32 atomic_long_t total_objects
    40 struct node_barn * barn                                  ? sheaves !per_node
struct kmem_cache_cpu 24
    0 void * freelist; 8 unsigned long tid
    16 struct page * page                                       ? !struct_slab
    16 struct slab * slab                                       ? struct_slab
struct memcg_cache_params 24                                    ? children
    8 struct kmem_cache * root_cache; 16 struct mem_cgroup * memcg
struct kmem_cache_per_node_ptrs 16                              ? sheaves
    0 struct node_barn * barn; 8 struct kmem_cache_node * node
struct node_barn 40 : 0 int lock; 8 struct list_head sheaves_full ? sheaves
struct slub_percpu_sheaves 32                                   ? sheaves
    8 struct slab_sheaf * main; 16 struct slab_sheaf * spare; 24 struct slab_sheaf * rcu_free
struct slab_sheaf 32                                            ? sheaves
    0 struct list_head barn_list; 24 unsigned int size; 32 void * [0] objects
struct kset 64 : 8 struct kobject kobj
struct kobject 8 : 0 struct kernfs_node * sd

struct mem_cgroup 512
    16 int kmemcg_id; 128 struct cgroup_subsys_state css
    400 struct mem_cgroup_per_node * [0] nodeinfo
struct cgroup_subsys_state 128
    0 struct cgroup * cgroup; 24 struct list_head sibling; 40 struct list_head children
    60 unsigned int flags; 64 unsigned long serial_nr; 72 atomic_t online_cnt
    80 struct cgroup_subsys_state * parent
struct cgroup 64 : 32 struct kernfs_node * kn
struct kernfs_node 96
    16 const char * name; 24 struct rb_node rb; 48 struct kernfs_elem_dir dir
    56 struct kernfs_elem_symlink symlink; 64 void * priv; 72 unsigned short flags
struct kernfs_elem_dir 8 : 0 struct rb_root children
struct kernfs_elem_symlink 8 : 0 struct kernfs_node * target_kn
struct mem_cgroup_per_node 8
struct obj_cgroup 64 : 24 struct mem_cgroup * memcg
struct slabobj_ext {element}                                    ? obj_exts
    0 struct obj_cgroup * objcg                                 ? !needs_objcg
    0 struct obj_cgroup * _objcg                                ? needs_objcg
    8 unsigned long ref                                         ? codetag !needs_objcg

struct list_lru 64                                              ? list_lrus
    8 struct list_head list; 24 int shrinker_id
    28 bool memcg_aware                                         ? aware_flag
    32 struct list_lru_ext * ext                                ? ext
    40 struct list_lru_node * node                              ? !ext
    48 struct xarray xa                                         ? xarray !ext
struct list_lru_ext 64 : 40 struct list_lru_node * node; 48 struct xarray xa ? ext
struct list_lru_node 64                                         ? list_lrus
    8 struct list_lru_one lru
    48 long nr_items                                            ? !locks
    48 atomic_long_t nr_items                                   ? locks
    56 struct list_lru_memcg * memcg_lrus                       ? !xarray
struct list_lru_one {list_size}                                 ? list_lrus
    0 struct list_head list; 16 long nr_items
    24 int lock                                                 ? locks
struct list_lru_memcg {header}                                  ? list_lrus
    {header} struct list_lru_one * [0] lru                      ? !xarray
    {header} struct list_lru_one [0] node                       ? xarray

struct dentry 200
    0 unsigned int d_flags; 8 struct hlist_bl_node d_hash; 24 struct dentry * d_parent
    32 struct qstr d_name; 48 struct inode * d_inode
    56 char [40] d_iname                                        ? !shortname
    56 union shortname_store d_shortname                        ? shortname
    96 struct super_block * d_sb; 104 struct lockref d_lockref; 120 struct list_head d_lru
    144 union dentry_u d_u                                      ? child_in_union
    144 struct list_head d_child                                ? !hlist !child_in_union
    160 struct list_head d_subdirs                              ? !hlist
    152 struct hlist_node d_sib                                 ? hlist
    168 struct hlist_head d_children                            ? hlist
    184 struct hlist_node d_alias
struct qstr 16 : 0 unsigned int hash; 4 unsigned int len; 8 const char * name
union dentry_u 16 : 0 struct list_head d_child
union shortname_store 40 : 0 char [40] string
struct lockref 8 : 0 unsigned int lock; 4 int count
struct inode 64
    0 unsigned int i_fsnotify_mask; 8 void * i_fsnotify_marks; 16 struct super_block * i_sb
struct file_system_type 64 : 8 const char * name
struct super_block 256
    8 struct list_head s_list; 24 unsigned int s_dev; 32 struct file_system_type * s_type
    40 struct dentry * s_root
    48 struct list_head s_mounts                                ? !own_mount_list
    48 struct mount * s_mounts                                  ? own_mount_list
    64 char [32] s_id; 96 const char * s_subtype; 104 void * s_fs_info
    112 struct list_head s_dentry_lru                           ? !list_lrus
    112 struct list_lru s_dentry_lru                            ? list_lrus
    176 struct list_lru s_inode_lru                             ? list_lrus
struct mount 256
    16 struct mount * mnt_parent; 24 struct dentry * mnt_mountpoint; 32 struct vfsmount mnt
    112 struct list_head mnt_instance                           ? !own_mount_list
    112 struct mount * mnt_next_for_sb                          ? own_mount_list
    152 struct mnt_namespace * mnt_ns
struct vfsmount 24 : 0 struct dentry * mnt_root; 8 struct super_block * mnt_sb
struct mnt_namespace 64 : 8 unsigned int nr_mounts
struct path 16 : 8 struct dentry * dentry
struct fs_struct 64 : 40 struct path pwd
struct files_struct 64 : 8 struct fdtable * fdt
struct fdtable 64 : 0 unsigned int max_fds; 8 struct file ** fd
struct file 128 : 16 struct path f_path
struct nsproxy 64 : 8 struct mnt_namespace * mnt_ns
struct pid_namespace 64 : 8 struct task_struct * child_reaper
struct task_struct 128
    16 struct list_head tasks; 32 struct nsproxy * nsproxy; 48 int tgid; 52 char [16] comm
    72 struct fs_struct * fs; 80 struct files_struct * files
"""
